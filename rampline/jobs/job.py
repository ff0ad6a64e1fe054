"""A job: a function in a process of its own with TensorFlow, and a folder; how it is run to its end. No TensorFlow."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rampline.errors import DownloadFailed, InputError, RunFailed
from rampline.files import make_directory, read_json, write_json
from rampline.jobs.exit_status import GPU_TAKEN, MACHINE_LOST, NO_DOWNLOAD, NO_MEMORY, WRONG_INPUT
from rampline.jobs.heartbeat import RunningClock
from rampline.jobs.launcher import TERMINATE_GRACE_SECONDS, Launcher, PlaceLost, Placement, Role, end_roles
from rampline.jobs.tf_config import ALONE, Task
from rampline.jobs.waiting import POLL_SECONDS
from rampline.record.events import EventReader

JOB, EVENTS, ANSWER = "job.json", "events.jsonl", "answer.json"
# After one of several has failed: until those that made it fail have ended, too.
LATER_SECONDS = 1.0
# What the C++ library says before it aborts.
NO_MEMORY_TEXT = "bad_alloc"

OnEvent = Callable[[dict[str, Any]], None]


def ignore(*_: object) -> None:
    """For callers that do not listen."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a process does.

    Attributes:
        function: its name in `rampline.worker.FUNCTIONS`; it is called with `folder` and `arguments`. Where the folder
            is a run directory it is `role`, and there is no `job.json`.
        folder: for `job.json`, `events.jsonl`, and `answer.json` with what the function returned.
        what: names it in messages, such as `evaluation`.
        arguments: by name, as JSON has them.
        log: file that all it prints is appended to; by default `log` in the folder, of a role `logs/ROLE-INDEX.log`.
        environment: what it has beside this process's.
        folders: that it reads and writes, the run directories among them; `folder` alone by default. A machine that
            does not share them has copies.
        gpus: which of its machine's it sees, by position; `None`: all, or its role's share.
        at_once: how many such jobs compute at the same time and share the cores.
        silence_seconds: without an event, after which it is ended.
        grace_seconds: between SIGTERM and SIGKILL, for what it has to put in order.
        ends_first: whether the kernel, when memory runs out, ends it before any other process.
    """

    function: str
    folder: Path
    what: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    log: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()
    datasets: Sequence[Path] = ()
    gpus: range | None = None
    at_once: int = 1
    timeout_seconds: float | None = None
    silence_seconds: float | None = None
    grace_seconds: float = TERMINATE_GRACE_SECONDS
    ends_first: bool = False

    def write(self) -> None:
        """Make the folder ready for the process: nothing is left in it of an earlier one."""
        make_directory(self.folder)
        for name in (EVENTS, ANSWER):
            (self.folder / name).unlink(missing_ok=True)
        order = {"function": self.function, "arguments": dict(self.arguments), "ends_first": self.ends_first}
        write_json(self.folder / JOB, order)

    def log_of(self, task: Task) -> Path:
        """The log of one of its processes."""
        return self.log or self.folder.joinpath("log" if task == ALONE else f"logs/{task.name}.log")

    def label_of(self, task: Task, node: str = "") -> str:
        """`parity check: worker 1 on NODE`, for messages; `evaluation on NODE` of a job without peers."""
        role = "" if task == ALONE else f"{task.role} {task.index}"
        return " on ".join(filter(None, (": ".join(filter(None, (self.what, role))), node)))


class JobFailed(RunFailed):
    """A process ended, or was ended, without having done its job.

    Attributes:
        label: which one.
        how: what it did, such as `was ended by signal 9`.
        log: file with all it has printed.
        status: its exit status; `None` where it was ended because it took too long.
    """

    def __init__(self, label: str, how: str, log: Path, status: int | None) -> None:
        super().__init__(f"{label} {how} (log: {log})")
        self.label, self.how, self.log, self.status = label, how, log, status

    @property
    def lacks_memory(self) -> bool:
        """Whether there was no memory for it, or it was ended as when memory runs out."""
        if self.status == -signal.SIGABRT:
            return NO_MEMORY_TEXT in self.log.read_text(errors="replace")
        return self.status in (NO_MEMORY, -signal.SIGKILL)

    def with_log_at(self, path: Path) -> JobFailed:
        """The same, with its log copied to where it stays."""
        make_directory(path.parent)
        return JobFailed(self.label, self.how, shutil.copyfile(self.log, path), self.status)


def run_job(job: Job, *, launcher: Launcher, on_event: OnEvent = ignore) -> Any:
    """Run a job to its end; whatever ends this call, its process is gone.

    Returns:
        what its function returned.

    Raises:
        InputError: when it found its input wrong.
        JobFailed: when it did not do its job.
    """
    run_together(launcher.place_jobs([job]), [(ALONE, job)], on_event)
    answer = job.folder / ANSWER
    return read_json(answer) if answer.is_file() else None


def run_together(placement: Placement, jobs: Sequence[tuple[Task, Job]], on_event: OnEvent = ignore) -> None:
    """Run jobs until the first has done what it does: it leads the others, which may be roles of the same job.

    Whatever ends this call, their processes are gone and their places given back.

    Raises:
        InputError: when one of them found its input wrong.
        JobFailed: when one of them failed, or all took too long.
        RunFailed: when a machine does not answer.
    """
    first, roles = jobs[0][1], list[Role]()
    with ExitStack() as stack:
        stack.callback(placement.close)
        stack.callback(end_roles, roles, first.grace_seconds)
        for _, job in jobs:
            job.write()
        try:
            for task, job in jobs:
                roles.append(placement.start(task, job))
            follow(roles, first, on_event)
        except PlaceLost as lost:
            raise RunFailed(f"{first.what}: {lost}") from lost


def follow(roles: Sequence[Role], job: Job, on_event: OnEvent = ignore) -> None:
    """Wait until the first of the processes of a job has done it: it leads the others.

    Raises:
        InputError: when one of them found its input wrong.
        JobFailed: when one of them failed, or all took too long.
    """
    events, clock = EventReader(job.folder / EVENTS), RunningClock()
    heard = began = clock()
    while True:
        is_done = roles[0].exit_status == 0  # before its events are read, or the last of them would be missed
        for event in events.read():
            heard = clock()
            on_event(event)
        if is_done:
            return
        if any(role.exit_status for role in roles):
            raise _failure(roles)
        if job.timeout_seconds is not None and clock() - began > job.timeout_seconds:
            raise JobFailed(roles[0].label, f"did not end within {job.timeout_seconds:.0f} s", roles[0].log, None)
        if job.silence_seconds is not None and clock() - heard > job.silence_seconds:
            raise JobFailed(roles[0].label, f"told nothing for {job.silence_seconds:.0f} s", roles[0].log, None)
        time.sleep(POLL_SECONDS)


def _failure(roles: Sequence[Role]) -> JobFailed:
    """Of several the one because of which the others failed: that lacks memory, or that a signal ended."""
    if len(roles) > 1:
        time.sleep(LATER_SECONDS)
    failed = [(role.exit_status, role) for role in roles if role.exit_status]
    status, role = min(failed, key=lambda pair: (pair[0] != NO_MEMORY, pair[0]))
    return JobFailed(role.label, how_it_ended(role), role.log, status)


def how_it_ended(role: Role) -> str:
    """`was ended by signal 9`, or `ended with status 1: ` and why.

    Raises:
        InputError: when it found its input wrong: what it said; `DownloadFailed` when a download failed.
    """
    status = role.exit_status or 0
    if status == WRONG_INPUT:
        raise InputError(role.last_line() or f"{role.label} refused its input (log: {role.log})")
    if status == NO_DOWNLOAD:
        raise DownloadFailed(role.last_line())
    if status == -signal.SIGALRM:
        return "did not find the other roles in time"
    # What a signal ended had no chance to say why: the last line of its log is about something else.
    if status < 0:
        return f"was ended by signal {-status}"
    reason = role.last_line()
    if status == MACHINE_LOST:
        return f"was lost: {reason}"
    told = {NO_MEMORY: "has no memory", GPU_TAKEN: "found its GPU full of what other processes have there"}
    how = told.get(status, f"ended with status {status}")
    return f"{how}: {reason}" if reason else how
