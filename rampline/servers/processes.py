"""What the operating system does for `rampline up`: processes that lead a group, that are found again, and that end.

All that is started carries the home in its environment, and so does all that it starts: flow runs, their roles, their
guardians. That is how it is found again, whatever was killed in between.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from rampline.record.home import Home
from rampline.servers.running import servers_folder

MARK, PART = "RAMPLINE_UP", "RAMPLINE_UP_PART"
LOCK_ATTEMPTS = 10
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(
    command: Sequence[str], *, part: str, home: Home, environment: Mapping[str, str], folder: Path, log: Path
) -> subprocess.Popen[bytes]:
    """Start a marked process that leads a session of its own, so that the terminal's Ctrl-C does not reach it.

    Args:
        command: arguments of this Python.
        part: what it belongs to: `prefect`, `mlflow`, `worker`, `deploy` or `caretaker`.
        home: whose `rampline up` this is.
        environment: its whole environment, without the mark.
        folder: where it runs.
        log: what it prints is appended to this file.
    """
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            # Safe path: no process of these, nor one that it starts, looks for modules in the folder that it runs in.
            env={**environment, MARK: str(home.root), PART: part, "PYTHONSAFEPATH": "1"},
            cwd=folder,
            stdin=subprocess.PIPE if part == "caretaker" else subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def marked(home: Home) -> Iterator[tuple[psutil.Process, str]]:
    """The processes that a `rampline up` of `home` has started, directly or not, each with its part; not this one."""
    for process in psutil.process_iter():
        # Those of others do not show their environment; a zombie has none.
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            if environment.get(MARK) == str(home.root) and process.pid != os.getpid():
                yield process, environment.get(PART, "")


def created(pid: int) -> float:
    """When a process was created, in seconds since 1970; 0 if there is none any more."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


def listens(pid: int, port: int) -> bool:
    """Whether a process, or one that it has started, listens on a port."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        sockets = [found for each in (process, *process.children(recursive=True)) for found in each.net_connections()]
        return any(found.status == psutil.CONN_LISTEN and found.laddr[1] == port for found in sockets)
    return False


def send(pid: int, number: signal.Signals) -> None:
    """Signal one process; nothing if it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that `pid` leads, or led: a group outlives its leader."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


@contextmanager
def hold_lock(home: Home) -> Iterator[bool]:
    """Hold the lock of `home`'s servers for the length of the block; yields whether it could be had.

    It is free again when the process that holds it ends, whatever way it goes.
    """
    folder = servers_folder(home)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+") as file:
        for _ in range(LOCK_ATTEMPTS):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # `lock_holder` of another command may have it for a moment.
                time.sleep(0.05)
        else:
            yield False
            return
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield True


def lock_holder(home: Home) -> int | None:
    """Process id of the `rampline up` that runs in `home`."""
    try:
        file = open(servers_folder(home) / "lock")  # noqa: SIM115 - closed below
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read().strip()
            return int(text) if text.isdigit() else None
    return None


@contextmanager
def counting_signals() -> Iterator[Callable[[], int]]:
    """In the block what would end this process only counts; yields a function that tells how often it was asked to."""
    count = 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal count
        count += 1

    before = {number: signal.signal(number, handle) for number in ENDING_SIGNALS}
    try:
        yield lambda: count
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
