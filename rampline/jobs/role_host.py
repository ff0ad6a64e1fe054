"""What a launcher has on another machine: it starts a role there by the local launcher, and tells of it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rampline.config import RunConfig
from rampline.devices import available_cores
from rampline.files import complete_directory
from rampline.jobs.job import Job
from rampline.jobs.local import LocalPlacement, LocalRole
from rampline.jobs.mirror import Change, Changes, apply, replace_run, unpack
from rampline.jobs.roles import free_ports
from rampline.jobs.tf_config import Task

POLL_SECONDS = 0.1
TELL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Update:
    """What is new of a role.

    Attributes:
        exit_status: `None` while it runs.
        silent_seconds: since its last heartbeat.
        last_line: why it ended.
        changes: of its run directory, where that is a copy.
    """

    exit_status: int | None
    silent_seconds: float
    last_line: str = ""
    changes: Sequence[Change] = field(default_factory=tuple)


class RoleHost:
    """Starts a role, and again where it was lost; it ends with this process.

    Args:
        environment: what is set in the environment of the command, beside this machine's.
        folder: where the command is; it is entered where it is here, too.
    """

    def __init__(self, environment: dict[str, str], folder: str) -> None:
        os.environ.update(environment)
        if Path(folder).is_dir():
            os.chdir(folder)
        self._role: LocalRole | None = None
        self._changes: Changes | None = None

    def look(self) -> tuple[int, int]:
        """A port that nobody listens on at the moment, and the number of cores."""
        return free_ports(1, host="")[0], available_cores()

    def lacks(self, paths: Sequence[str]) -> list[str]:
        """Which of these paths are not on this machine."""
        return [path for path in paths if not Path(path).exists()]

    def stage(self, folder: str, content: bytes) -> None:
        """Put a folder where it is on the command's machine, complete or not at all."""
        with complete_directory(Path(folder)) as aside:
            unpack(content, aside)

    def stage_run(self, folder: str, content: bytes) -> None:
        """Put a copy of the run directory here, once per attempt: all roles on this machine share it."""
        replace_run(content, Path(folder))

    def tell_changes(self, folder: str, task: Task) -> None:
        """The folder is a copy: from now on what this role changes in it is told."""
        self._changes = Changes(Path(folder), task)

    def change(self, folder: str, change: Change) -> None:
        """Make a change in this machine's copy."""
        apply(Path(folder), change)

    def start(self, job: Job, task: Task, config: RunConfig, seconds_since_launch: float) -> dict:
        """Start the role; returns its entry in `roles.json`.

        Args:
            job: what it does.
            task: which role it is.
            config: of the run.
            seconds_since_launch: clocks differ between machines, ages do not.
        """
        own = {"RAMPLINE_LAUNCHED_AT": repr(time.monotonic() - seconds_since_launch), **self._gpus()}
        started = threading.Event()

        def hold() -> None:
            # The kernel ends the role with the thread that has started it, see `rampline.jobs.parent`.
            self._role = LocalPlacement(config, [task]).start(
                task, replace(job, environment={**job.environment, **own})
            )
            started.set()
            self._role.process.wait()

        self._role = None
        threading.Thread(target=hold, name=task.name, daemon=True).start()
        if not started.wait(60) or self._role is None:
            raise RuntimeError(f"{task.name} could not be started")
        return self._role.describe()

    def updates(self) -> Iterator[Update]:
        """What is new of the role, at least every second, until it has ended."""
        role, told_at = self._role, 0.0
        while role is not None:
            status = role.exit_status  # before its files are read, or the last of them would be missed
            changes = self._changes.read() if self._changes else []
            if changes or status is not None or time.monotonic() - told_at > TELL_SECONDS:
                told_at = time.monotonic()
                last_line = "" if status is None else role.last_line()
                yield Update(
                    exit_status=status, silent_seconds=role.silent_seconds(), last_line=last_line, changes=changes
                )
            if status is not None:
                return
            time.sleep(POLL_SECONDS)

    def silent_seconds(self) -> float:
        """Time since the role's last heartbeat."""
        return self._role.silent_seconds() if self._role else 0.0

    def signal(self, number: int) -> None:
        """Signal the role and all it has started."""
        if self._role is not None:
            self._role.signal(signal.Signals(number))

    def _gpus(self) -> dict[str, str]:
        import ray

        gpus = ",".join(map(str, ray.get_gpu_ids()))
        return {"CUDA_VISIBLE_DEVICES": gpus or "-1"} if gpus or "CUDA_VISIBLE_DEVICES" in os.environ else {}
