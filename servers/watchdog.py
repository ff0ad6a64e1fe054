"""`python -m rampline.servers.watchdog EXECUTION`: closes it in MLflow and Prefect when its process was killed.

The process that is killed can do nothing any more, hence one of its own: small, in its own session (the terminal's
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
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

FAILURE = "the process that ran it was killed"
# Written by the watched process; without it the end of the pipe means that it was killed.
DONE = "done"
FLOW_RUN, PROCESS = "RAMPLINE_FLOW_RUN_ID", "RAMPLINE_WATCHED_PROCESS"
LONGEST_SECONDS = 30
REQUEST_SECONDS = 5
ATTEMPTS = 3


def start_watchdog(execution: Path, process: str, prefect: Mapping[str, str]) -> Callable[[], None]:
    """Have an execution closed if this process is killed.

    Args:
        execution: its folder.
        process: `process_identity` of this process: what another has taken over by then is left alone.
        prefect: `RAMPLINE_FLOW_RUN_ID`, and the `PREFECT_API_…` settings that lead to its API; empty without Prefect.

    Returns:
        a function that dismisses the watchdog, because this process has closed the execution itself.
    """
    watchdog = subprocess.Popen(
        [sys.executable, "-P", "-m", "rampline.servers.watchdog", str(execution)],
        # Through the environment, because everybody can read the arguments of a process.
        env={**os.environ, **prefect, PROCESS: process},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def dismiss() -> None:
        try:
            watchdog.communicate(f"{DONE}\n".encode(), timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            watchdog.kill()
            watchdog.wait()

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
    with open(execution / "watchdog.log", "a", buffering=1) as log:
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
    # Its own retries would wait longer than this process lives.
    os.environ["PREFECT_CLIENT_MAX_RETRIES"] = "0"
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.states import Crashed

    for attempt in range(1, ATTEMPTS + 1):
        try:
            with get_client(httpx_settings={"timeout": REQUEST_SECONDS}, sync_client=True) as client:
                chosen = list(_unfinished(client, UUID(root)))
                for flow_run in chosen:
                    client.set_flow_run_state(flow_run, Crashed(message=f"Rampline: {FAILURE}."), force=True)
            return f"Prefect: {len(chosen)} flow runs crashed"
        except httpx.HTTPError:
            if attempt == ATTEMPTS:
                raise
            time.sleep(1)
    return ""


def _unfinished(client: SyncPrefectClient, root: UUID) -> Iterator[UUID]:
    """The flow run and all below it that have not ended, the lowest first."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId

    children = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[root]))
    for child in client.read_flow_runs(flow_run_filter=children):
        yield from _unfinished(client, child.id)
    state = client.read_flow_run(root).state
    if state is None or not state.is_final():
        yield root


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
