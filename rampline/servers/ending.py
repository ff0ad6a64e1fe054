"""Ending all that a `rampline up` has started: the worker and its flow runs, their guardians, then the servers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from rampline.record.home import Home
from rampline.servers.processes import marked, send, send_group
from rampline.servers.running import state_file

# Roles have 15 s to save a checkpoint; their flow run tells Prefect and MLflow after that.
FLOW_RUNS_SECONDS = 25.0
GUARDIANS_SECONDS = 15.0
SERVERS_SECONDS = 8.0
CARETAKER_SECONDS = 75.0
POLL_SECONDS = 0.1
SERVERS = ("prefect", "mlflow")


def end_all(home: Home, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
    """End every process of `home`'s servers, in order, and remove their state file.

    Args:
        home: whose servers.
        is_urgent: asked again and again: whether somebody does not want to wait any more.
    """
    # A worker that is asked to end kills its flow runs at once. So it is halted, and starts no others, until they have
    # ended in their own way.
    for worker, _ in _select(home, _worker):
        send(worker.pid, signal.SIGSTOP)
    _end(home, _flow_runs, seconds=FLOW_RUNS_SECONDS, is_urgent=is_urgent)
    # They tell Prefect and MLflow of flow runs that had to be killed, so they go before the servers.
    _wait(home, _guardians, seconds=GUARDIANS_SECONDS, is_urgent=is_urgent)
    _end(home, _all_but_caretaker, seconds=SERVERS_SECONDS, is_urgent=is_urgent)
    state_file(home).unlink(missing_ok=True)


def has_flow_runs(home: Home) -> bool:
    """Whether flow runs are in progress."""
    return bool(_select(home, _flow_runs))


def end_leftovers(home: Home) -> bool:
    """End what a `rampline up` that was killed has left; returns whether there was something.

    Its caretaker is at it, so that is waited for first. To be called without a `rampline up` running.
    """
    if not list(marked(home)):
        state_file(home).unlink(missing_ok=True)
        return False
    _wait(home, _caretaker, seconds=CARETAKER_SECONDS, is_urgent=lambda: False)
    end_all(home)
    _end(home, _everything, seconds=0.0, is_urgent=lambda: False)
    return True


Selection = Callable[[psutil.Process, str], bool]


def _worker(process: psutil.Process, part: str) -> bool:
    return part == "worker" and "rampline.servers.child" in process.cmdline()


def _flow_runs(process: psutil.Process, part: str) -> bool:
    """Flow runs and all that they have started; not their guardians."""
    return part == "worker" and not _worker(process, part) and not _guardians(process, part)


def _guardians(process: psutil.Process, part: str) -> bool:
    return part == "worker" and "rampline.servers.guardian" in process.cmdline()


def _all_but_caretaker(_process: psutil.Process, part: str) -> bool:
    return part != "caretaker"


def _caretaker(_process: psutil.Process, part: str) -> bool:
    return part == "caretaker"


def _everything(_process: psutil.Process, _part: str) -> bool:
    return True


def _end(home: Home, selection: Selection, *, seconds: float, is_urgent: Callable[[], bool]) -> None:
    """SIGTERM to those that nobody else of the selection looks after; SIGKILL to what is left, and what it starts."""
    chosen = _select(home, selection)
    ids = {process.pid for process, _ in chosen}
    for process, part in chosen:
        with suppress(psutil.Error):
            # MLflow's parent process does not pass it on; a worker does, and a flow run needs to be asked just once.
            if part in SERVERS or process.ppid() not in ids:
                send(process.pid, signal.SIGTERM)
                # A halted one notices after that.
                send(process.pid, signal.SIGCONT)
    _wait(home, selection, seconds=seconds, is_urgent=is_urgent)
    while left := _select(home, selection):
        for process, _ in left:
            send_group(process.pid, signal.SIGKILL)
            send(process.pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def _wait(home: Home, selection: Selection, *, seconds: float, is_urgent: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while _select(home, selection) and time.monotonic() < deadline and not is_urgent():
        time.sleep(POLL_SECONDS)


def _select(home: Home, selection: Selection) -> list[tuple[psutil.Process, str]]:
    chosen = []
    for process, part in marked(home):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and selection(process, part):
                chosen.append((process, part))
    return chosen
