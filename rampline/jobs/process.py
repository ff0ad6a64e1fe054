"""One role as a process of this machine: started in its own group, ended without remains."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rampline.config import RunConfig
from rampline.jobs.fork_server import Process, fork_worker
from rampline.jobs.private_network import SHARED, Network
from rampline.jobs.roles import role_environment, worker_environment
from rampline.jobs.tf_config import Task
from rampline.record.attempts import Attempt
from rampline.record.run_directory import RunDirectory

TERMINATE_GRACE_SECONDS = 1.0
# For a checkpoint at the next call boundary; with the grace above, all roles are gone within 20 s.
STOP_GRACE_SECONDS = 14.0
ERROR_MARK = "rampline: error: "


@dataclass(frozen=True, kw_only=True)
class RoleProcess:
    """A started role.

    Attributes:
        task: its place in the cluster.
        process: in a session and group of its own.
        log: file with all it prints; those before it in this place have written to it too.
        log_offset: where its own part begins, in bytes.
    """

    task: Task
    process: Process
    log: Path
    log_offset: int = 0

    @property
    def label(self) -> str:
        """`worker 1`, for messages."""
        return f"{self.task.role} {self.task.index}"

    @property
    def exit_status(self) -> int | None:
        """`None` while it runs, negative if a signal ended it."""
        return self.process.poll()

    def kill(self) -> None:
        """End its group at once, and wait until it is gone."""
        _signal(self.process, signal.SIGKILL)
        self.process.wait()

    def last_line(self) -> str:
        """Why it ended, see `last_line`."""
        return last_line(self.log, self.log_offset)

    def describe(self) -> dict[str, object]:
        """Its entry in `roles.json`."""
        return {
            "role": self.task.role,
            "index": self.task.index,
            "pid": self.process.pid,
            "host": socket.gethostname(),
            "address": self.task.cluster[self.task.role][self.task.index],
            "log": str(self.log),
        }


def start_role(
    task: Task, run_directory: RunDirectory, config: RunConfig, attempt: Attempt, launched_at: float, network: Network
) -> RoleProcess:
    """Start `python -m rampline.worker RUN_DIR` as `task`; its output is appended to `logs/ROLE-INDEX.log`.

    Args:
        task: its place in the cluster.
        run_directory: the run.
        config: of the run.
        attempt: which start of the run this is.
        launched_at: `time.monotonic()` at which the attempt began.
        network: that all roles of the run are in.
    """
    log = run_directory.logs / f"{task.name}.log"
    own = {
        "RAMPLINE_ATTEMPT": str(attempt.number),
        "RAMPLINE_LAUNCHED_AT": repr(launched_at),
        "RAMPLINE_WALL_SECONDS_BEFORE": repr(attempt.wall_seconds_before),
    }
    offset = log.stat().st_size if log.is_file() else 0
    environment = {**role_environment(task, config), **own}
    process = start_worker([str(run_directory.path)], log, environment, network)
    return RoleProcess(task=task, process=process, log=log, log_offset=offset)


def start_worker(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], network: Network = SHARED
) -> Process:
    """Start `python -m rampline.worker ARGUMENTS` in a session of its own; it ends when this process is gone.

    In the block of a `fork_server` that was made in this environment, it is a fork of that.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    whole = worker_environment({**environment, **network.environment})
    if forked := fork_worker(arguments, log, whole, network):
        return forked
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*network.command, sys.executable, "-P", "-m", "rampline.worker", *arguments],
            env=whole,
            pass_fds=network.descriptors,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def stop_all(roles: Sequence[RoleProcess], config: RunConfig, log: Callable[[str], None]) -> None:
    """Ask the roles to save a checkpoint and leave, then end them; a second Ctrl-C ends them at once."""
    training = [role for role in roles if config.is_synchronous or role.task.is_chief]
    try:
        if any(role.exit_status is None for role in training):
            log("stopping: the run saves a checkpoint first")
        ask_to_stop(training)
        for role in training:
            if role.exit_status is None:
                log(f"{role.label} did not leave within {STOP_GRACE_SECONDS:.0f} s and is killed")
        end_processes([role.process for role in roles])
    finally:
        for role in roles:
            role.kill()


def ask_to_stop(roles: Sequence[RoleProcess]) -> None:
    """Send SIGTERM, and give the roles the time for a checkpoint."""
    for role in roles:
        _signal(role.process, signal.SIGTERM)
    _wait_until_gone([role.process for role in roles], STOP_GRACE_SECONDS)


def end_processes(processes: Sequence[Process]) -> None:
    """End the groups of these processes: SIGTERM, and after a grace SIGKILL. TensorFlow may swallow the first."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    _wait_until_gone(processes, TERMINATE_GRACE_SECONDS)
    for process in processes:
        _signal(process, signal.SIGKILL)
        process.wait()


def _wait_until_gone(processes: Sequence[Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(0.05)


def last_line(log: Path, offset: int = 0) -> str:
    """Why a process ended: its own error line, else the last line of its log, from byte `offset` on."""
    text = log.read_bytes()[offset:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line.removeprefix(ERROR_MARK) for line in lines if line.startswith(ERROR_MARK)]
    return (own or lines or [""])[-1]


def _signal(process: Process, number: signal.Signals) -> None:
    # The group outlives its leader as long as one member runs, so it is signalled in any case.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
