"""Roles that are started before their run: they import TensorFlow while Prefect starts, then wait for their task.

Such a role knows its run directory, but is told its place in the cluster, its environment and its log by one line of
JSON on standard input. It touches no device before. It ends with its parent, with that pipe, or after a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rampline.cluster.roles import role_counts, worker_environment
from rampline.config import RunConfig

WAIT = "--wait"
# A study that waits longer for its turn, or prepares data for longer, must not hold memory for so long.
LONGEST_WAIT_SECONDS = 120
# What TensorFlow reads when it makes its devices and servers. All else may have had its effect on import.
READ_LATE = ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_GRPC_DEFAULT_OPTIONS")
READ_LATE += ("CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL")
NOT_OF_TENSORFLOW = ("RAMPLINE_", "PREFECT", "MLFLOW_")


@dataclass(frozen=True, kw_only=True)
class _EarlyRole:
    run_directory: Path
    process: subprocess.Popen[bytes]
    environment: Mapping[str, str]
    working_folder: str


_waiting: list[_EarlyRole] = []


def start_early(run_directory: Path, config: RunConfig) -> None:
    """Begin to start the roles of a run that does not exist yet, from the thread that will launch it."""
    # With TF_CONFIG the others are started on their machines.
    count = 1 if os.environ.get("TF_CONFIG") else sum(role_counts(config).values())
    environment = {"TF_CPP_MIN_LOG_LEVEL": "1", **worker_environment({})}
    for _ in range(count):
        # Without a name: what they print goes into their log as soon as they have one.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "rampline.worker", str(run_directory), WAIT],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        role = {"run_directory": run_directory, "environment": environment, "working_folder": os.getcwd()}
        _waiting.append(_EarlyRole(process=process, **role))


def take_early(run_directory: Path, log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """A process that is started already for that run directory, now with this environment and log; `None` without."""
    while found := next((role for role in _waiting if role.run_directory == run_directory), None):
        _waiting.remove(found)
        if _fits(found, environment) and _tell(found.process, {"environment": dict(environment), "log": str(log)}):
            return found.process
        _end(found)
    return None


def end_early() -> None:
    """End those that were not needed."""
    while _waiting:
        _end(_waiting.pop())


def _end(role: _EarlyRole) -> None:
    role.process.kill()
    with contextlib.suppress(BrokenPipeError):
        role.process.communicate()


def _fits(role: _EarlyRole, environment: Mapping[str, str]) -> bool:
    before = role.environment
    changed = {name for name in {*before, *environment} if before.get(name) != environment.get(name)}
    matters = [name for name in changed if name not in READ_LATE and not name.startswith(NOT_OF_TENSORFLOW)]
    return role.working_folder == os.getcwd() and not matters


def _tell(process: subprocess.Popen[bytes], order: Mapping[str, object]) -> bool:
    """Whether the process lives, and has got it."""
    if process.poll() is not None or process.stdin is None:
        return False
    try:
        with process.stdin as pipe:
            pipe.write(f"{json.dumps(order)}\n".encode())
    except BrokenPipeError:
        return False
    return True


def count_import(launched: float, *, began: float, ready: float) -> float:
    """When the run would have been launched if the role had been started then: its wall time has the import in it.

    Args:
        launched: when it was, `time.monotonic()`, as the others.
        began: when the import did.
        ready: when that had ended.
    """
    return launched - max(0.0, min(launched, ready) - began)


def wait_for_task() -> None:
    """In such a role: wait to be told, take over the environment, and print to the log from then on.

    The process ends when nothing comes: `SystemExit`.
    """
    ready, _, _ = select.select([sys.stdin], [], [], LONGEST_WAIT_SECONDS)
    line = sys.stdin.readline() if ready else ""
    if not line:
        raise SystemExit(0)
    order = json.loads(line)
    for name in set(os.environ) - set(order["environment"]):
        del os.environ[name]
    os.environ.update(order["environment"])
    sys.stdout.flush()
    sys.stderr.flush()
    with open(order["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        printed = os.fstat(1).st_size
        log.write(os.pread(1, printed, 0))
        log.flush()
        for target in (1, 2):
            os.dup2(log.fileno(), target)
        os.dup2(nothing.fileno(), 0)
