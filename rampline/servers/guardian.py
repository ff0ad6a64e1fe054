"""`python -m rampline.servers.guardian EXECUTION`: closes it in MLflow and Prefect when its process was killed.

Nobody can do that at the moment of a `kill -9`, hence a process of its own: small, in its own session (the terminal's
Ctrl-C does not reach it), deaf to SIGTERM (the end of a job of Slurm or systemd begins with it), and idle on a pipe
that only the watched process holds. What it needs for its work is loaded when there is some.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rampline.servers.prefect_api import PrefectApi, PrefectError

FAILURE = "the process that ran it was killed"
# Written by the watched process; without it the end of the pipe means that it was killed.
DONE = "done"
FLOW_RUN, PROCESS = "RAMPLINE_FLOW_RUN_ID", "RAMPLINE_GUARDED_PROCESS"
LONGEST_SECONDS = 30
REQUEST_SECONDS = 5
ATTEMPTS = 3
UNFINISHED = ["SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING"]


def start_guardian(execution: Path, process: str, prefect: Mapping[str, str]) -> Callable[[], None]:
    """Have an execution closed if this process is killed.

    Args:
        execution: its folder.
        process: `process_identity` of this process: what another has taken over by then is left alone.
        prefect: `RAMPLINE_FLOW_RUN_ID`, and the `PREFECT_API_…` settings that lead to its API; empty without Prefect.

    Returns:
        a function that sends the guardian home, because this process has closed the execution itself.
    """
    guardian = subprocess.Popen(
        [sys.executable, "-P", "-m", "rampline.servers.guardian", str(execution)],
        # Through the environment, because everybody can read the arguments of a process.
        env={**os.environ, **prefect, PROCESS: process},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def dismiss() -> None:
        try:
            guardian.communicate(f"{DONE}\n".encode(), timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            guardian.kill()
            guardian.wait()

    return dismiss


def main() -> int:
    """Wait for the end of the pipe on standard input."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.readline().strip() == DONE:
        return 0
    # Without a handler it ends the process, also one that waits for a server that does not answer.
    signal.alarm(LONGEST_SECONDS)
    execution = Path(sys.argv[1])
    with open(execution / "guardian.log", "a", buffering=1) as log:
        sys.stderr = log
        for close in (_close_in_prefect, _close_in_mlflow):
            try:
                log.write(f"{time.strftime('%H:%M:%S')} {close(execution)}\n")
            except Exception as error:  # noqa: BLE001 - one that is away must not keep the other from being told
                from rampline.credentials import mask

                log.write(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {mask(str(error))}\n")
    return 0


def _close_in_prefect(_execution: Path) -> str:
    """Set the flow run and its subflows Crashed, as Prefect calls runs whose process is gone."""
    root = os.environ.get(FLOW_RUN)
    if not root or not os.environ.get("PREFECT_API_URL"):
        return "Prefect: no flow run to close"
    api = PrefectApi.from_environment(timeout_seconds=REQUEST_SECONDS)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            closed = [_crash(api, flow_run) for flow_run in _unfinished(api, root)]
            return f"Prefect: {len(closed)} flow runs crashed"
        except (OSError, PrefectError):
            if attempt == ATTEMPTS:
                raise
            time.sleep(1)
    return ""


def _unfinished(api: PrefectApi, root: str) -> Iterator[str]:
    """The flow run and all below it that have not ended, the lowest first."""
    below = {"parent_flow_run_id": {"any_": [root]}, "state": {"type": {"any_": UNFINISHED}}}
    for child in api.post("/flow_runs/filter", {"flow_runs": below}):
        yield from _unfinished(api, child["id"])
    if api.request("GET", f"/flow_runs/{root}")["state_type"] in UNFINISHED:
        yield root


def _crash(api: PrefectApi, flow_run: str) -> str:
    state = {"type": "CRASHED", "name": "Crashed", "message": f"Rampline: {FAILURE}."}
    api.post(f"/flow_runs/{flow_run}/set_state", {"state": state, "force": True})
    return flow_run


def _close_in_mlflow(execution: Path) -> str:
    from rampline.record.delivery_state import mark_killed
    from rampline.study.execution_file import Execution
    from rampline.tracking.store import open_tracking
    from rampline.tracking.sync import sync_execution

    killed, opened = mark_killed(execution, os.environ[PROCESS], FAILURE), Execution.open(execution)
    sync_execution(open_tracking(opened.home), opened, log=lambda _: None)
    return f"MLflow: {killed} runs killed"


if __name__ == "__main__":
    sys.exit(main())
