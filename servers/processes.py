"""The processes of `rampline up`: how they are started, found again and ended.

All that is started carries the home in its environment, and so does all that it starts: flow runs, their roles, their
watchdogs. That is how it is found again, whatever was killed in between.

`python -m rampline.servers.processes SUPERVISOR MODULE ARGUMENT…` is one of them: the module, which outlives its
supervisor only to end in order. A supervisor that is killed with `kill -9` can do nothing any more. So every service
looks for it, and the first that gets the lock of the home ends all in its place.
"""

from __future__ import annotations

import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import psutil

from rampline.errors import InputError
from rampline.files import lock_now, locked
from rampline.jobs.waiting import wait_until
from rampline.record.home import Home
from rampline.servers.running import servers_folder, state_file

MARK, PART = "RAMPLINE_UP", "RAMPLINE_UP_PART"
MODULE = "rampline.servers.processes"
LOCK_SECONDS = 0.5
# Roles have 15 s to save a checkpoint; their flow run tells Prefect and MLflow after that.
FLOW_RUNS_SECONDS = 25.0
WATCHDOGS_SECONDS = 15.0
SERVERS_SECONDS = 8.0
# Longer than all of these take.
END_SECONDS = 75.0
POLL_SECONDS = 0.1
PARENT_POLL_SECONDS = 0.5
SERVERS = ("prefect", "mlflow")
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def start(
    command: Sequence[str],
    *,
    part: str,
    home: Home,
    environment: Mapping[str, str],
    folder: Path,
    log: Path,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a marked process that leads a session of its own, so that the terminal's Ctrl-C does not reach it.

    Args:
        command: arguments of this Python.
        part: what it belongs to: `prefect`, `mlflow`, `worker` or `deploy`.
        home: whose `rampline up` this is.
        environment: all of it, without the mark.
        folder: where it runs.
        log: what it prints is appended there.
        pass_fds: open files that it has too.
    """
    mark = {"RAMPLINE_HOME": str(home.root), MARK: str(home.root), PART: part}
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, *command],
            # Safe path: no process of these looks for modules in the folder that it runs in.
            env={**environment, **mark, "PYTHONSAFEPATH": "1"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=pass_fds,
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


def send(pid: int, number: signal.Signals) -> None:
    """Signal one process; nothing if it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(pid: int, number: signal.Signals) -> None:
    """Signal the process group that `pid` leads, or led: a group outlives its leader."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def hold_lock(home: Home, *, seconds: float = LOCK_SECONDS) -> AbstractContextManager[bool]:
    """`locked`, with the lock of `home`'s servers; `lock_holder` of another command may have it for a moment."""
    return locked(servers_folder(home) / "lock", seconds=seconds)


def lock_holder(home: Home) -> int | None:
    """Process id of the `rampline up` that runs in `home`.

    Raises:
        InputError: when it runs on another machine, where that number is of another process than here.
    """
    try:
        file = open(servers_folder(home) / "lock")  # noqa: SIM115 - closed below
    except OSError:
        return None
    with file:
        if lock_now(file):
            return None
        found = re.fullmatch(r"process (\d+) on (.+)", file.read())
    if found and found[2] != socket.gethostname():
        raise InputError(f"`rampline up` of {home.root} runs on {found[2]}: end it there")
    return int(found[1]) if found else None


@contextmanager
def counting_signals() -> Iterator[Callable[[], int]]:
    """In the block what would end this process only counts; yields a function that tells how often it was asked to.

    A terminal that is closed hangs up twice, and asks once.
    """
    count = 0

    def handle(_number: int, _frame: object) -> None:
        nonlocal count
        count += 1
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    deaf = (signal.SIGHUP, signal.SIG_IGN)  # it has hung up before
    heard = [number for number in ENDING_SIGNALS if (number, signal.getsignal(number)) != deaf]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield lambda: count
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_all(home: Home, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
    """End every process of `home`'s servers, in order, and remove their state file.

    `is_urgent` is asked again and again: whether somebody does not want to wait any more.
    """
    # A worker that is asked to end kills its flow runs at once. So it is halted, and starts no others, until they have
    # ended in their own way.
    for worker, _ in _select(home, _worker):
        send(worker.pid, signal.SIGSTOP)
    _end(home, _flow_runs, seconds=FLOW_RUNS_SECONDS, is_urgent=is_urgent)
    # They tell Prefect and MLflow of flow runs that had to be killed, so they go before the servers.
    _wait(home, _watchdogs, seconds=WATCHDOGS_SECONDS, is_urgent=is_urgent)
    _end(home, lambda _process, _part: True, seconds=SERVERS_SECONDS, is_urgent=is_urgent)
    state_file(home).unlink(missing_ok=True)


def has_flow_runs(home: Home) -> bool:
    """Whether flow runs are in progress."""
    return bool(_select(home, _flow_runs))


def is_ending(home: Home) -> bool:
    """Whether services whose supervisor was killed are ending all by themselves."""
    holder = lock_holder(home)
    return holder is not None and any(process.pid == holder for process, _ in marked(home))


def end_leftovers(home: Home) -> bool:
    """End what a supervisor that was killed has left; returns whether there was something."""
    was_ending = is_ending(home)
    with hold_lock(home, seconds=END_SECONDS if was_ending else LOCK_SECONDS) as is_held:
        found = is_held and next(marked(home), None) is not None
        if found:
            end_all(home)
        elif is_held:
            state_file(home).unlink(missing_ok=True)
    return found or was_ending


Selection = Callable[[psutil.Process, str], bool]


def _worker(process: psutil.Process, part: str) -> bool:
    return part == "worker" and MODULE in process.cmdline()


def _flow_runs(process: psutil.Process, part: str) -> bool:
    """Flow runs and all that they have started; not their watchdogs."""
    return part == "worker" and not _worker(process, part) and not _watchdogs(process, part)


def _watchdogs(process: psutil.Process, part: str) -> bool:
    return part == "worker" and "rampline.servers.watchdog" in process.cmdline()


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
        chosen += left
        for process, _ in left:
            send_group(process.pid, signal.SIGKILL)
            send(process.pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    # A process that is going has no environment any more, but may have its port still.
    while not all(is_gone(process) for process, _ in chosen):
        time.sleep(POLL_SECONDS)


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, with all that it had open."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _wait(home: Home, selection: Selection, *, seconds: float, is_urgent: Callable[[], bool]) -> None:
    wait_until(lambda: is_urgent() or not _select(home, selection), seconds, every=POLL_SECONDS)


def _select(home: Home, selection: Selection) -> list[tuple[psutil.Process, str]]:
    chosen = []
    for process, part in marked(home):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and selection(process, part):
                chosen.append((process, part))
    return chosen


def end_without(supervisor: int, home: Home) -> None:
    """Wait until the supervisor is gone, then end all of `home`'s servers in order, and this process last."""
    while os.getppid() == supervisor:
        time.sleep(PARENT_POLL_SECONDS)
    # The services that do not get the lock are ended by the one that has it, or take its place if it is killed.
    with hold_lock(home, seconds=END_SECONDS) as is_held:
        if is_held:
            end_all(home)
        # With the lock, which is free when this process and its port are gone.
        send_group(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Take the place of the module, with its arguments."""
    supervisor, module, *arguments = sys.argv[1:]
    home = Home.from_environment()
    threading.Thread(target=end_without, args=(int(supervisor), home), name="supervisor-watch", daemon=True).start()
    # Prefect's worker works in `runner_storage` there, which in the machine's own folder belongs to the first user.
    temporary = servers_folder(home) / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    tempfile.tempdir = str(temporary)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
