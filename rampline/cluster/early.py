"""Worker processes started before they are needed: they import TensorFlow meanwhile, then wait for their order.

The roles of a study's first run import it while Prefect starts (see `rampline.cli.run`), the probes of `rampline
explain` while the runs are evaluated. Such a process has its arguments, but is told its environment (its place in the
cluster, its share of the cores) and its log by one line of JSON on standard input. It touches no device before. It ends
with its parent, with that pipe, or after a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rampline.cluster.private_network import SHARED, Network
from rampline.cluster.roles import worker_environment

WAIT = "--wait"
# A study that waits longer for its turn, or prepares data for longer, must not hold memory for so long.
LONGEST_WAIT_SECONDS = 120
# What TensorFlow reads when it makes its devices and servers. All else may have had its effect on import.
READ_LATE = ("TF_CONFIG", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "TF_GRPC_DEFAULT_OPTIONS")
READ_LATE += ("CUDA_VISIBLE_DEVICES", "TF_CPP_MIN_LOG_LEVEL")
NOT_OF_TENSORFLOW = ("RAMPLINE_", "PREFECT", "MLFLOW_")


@dataclass(frozen=True, kw_only=True)
class _EarlyWorker:
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes]
    network: Network
    environment: Mapping[str, str]
    working_folder: str


_waiting: list[_EarlyWorker] = []


def start_early(arguments: Sequence[str], network: Network = SHARED) -> None:
    """Begin to start `python -m rampline.worker ARGUMENTS`, from the thread that will order it."""
    environment = {"TF_CPP_MIN_LOG_LEVEL": "1", **worker_environment(network.environment)}
    # Without a name: what it prints goes into its log as soon as it has one.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [*network.command, sys.executable, "-P", "-m", "rampline.worker", *arguments, WAIT],
            env=environment,
            pass_fds=network.descriptors,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    worker = {"arguments": tuple(arguments), "environment": environment, "working_folder": os.getcwd()}
    _waiting.append(_EarlyWorker(process=process, network=network, **worker))


def take_early(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], network: Network = SHARED
) -> subprocess.Popen[bytes] | None:
    """A process that is started already with these arguments, now with this environment and log; `None` without."""
    while found := next((worker for worker in _waiting if worker.arguments == tuple(arguments)), None):
        _waiting.remove(found)
        if (
            found.network == network
            and _fits(found, environment)
            and _tell(found.process, {"environment": dict(environment), "log": str(log)})
        ):
            return found.process
        _end(found)
    return None


def end_early() -> None:
    """End those that were not needed."""
    while _waiting:
        _end(_waiting.pop())


def _end(worker: _EarlyWorker) -> None:
    worker.process.kill()
    with contextlib.suppress(BrokenPipeError):
        worker.process.communicate()


def _fits(worker: _EarlyWorker, environment: Mapping[str, str]) -> bool:
    before = worker.environment
    changed = {name for name in {*before, *environment} if before.get(name) != environment.get(name)}
    matters = [name for name in changed if name not in READ_LATE and not name.startswith(NOT_OF_TENSORFLOW)]
    return worker.working_folder == os.getcwd() and not matters


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


def wait_for_order() -> None:
    """In such a process: wait to be told, take over the environment, and print to the log from then on.

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
