"""What a launcher has on another machine: it starts roles there by the local launcher, and tells of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from rampline.config import RunConfig
from rampline.devices import available_cores, free_ports
from rampline.files import complete_directory, remove
from rampline.jobs.fork_server import fork_server
from rampline.jobs.job import Job
from rampline.jobs.launcher import end_roles
from rampline.jobs.local import LocalPlacement, LocalRole
from rampline.jobs.mirror import Change, Changes, apply, replace_run, unpack
from rampline.jobs.tf_config import Task
from rampline.record.home import Home, keep_private

POLL_SECONDS = 0.1
TELL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Update:
    """What is new on a machine.

    Attributes:
        silent_seconds: of each role since its last heartbeat.
        ended: exit status and telling line of those that have ended.
        changes: in folders that are copies.
    """

    silent_seconds: Mapping[str, float]
    ended: Mapping[str, tuple[int, str]]
    changes: Sequence[Change] = field(default_factory=tuple)


class RoleHost:
    """Starts the roles that one placement has on this machine, as forks of one process; they end with this process.

    Each start of a role has a name of its own.

    Args:
        environment: what is set in the environment of the command, beside this machine's.
        folder: where the command is; it is entered where it is here, too.
    """

    def __init__(self, environment: Mapping[str, str], folder: str) -> None:
        # What it is by itself; Ray would set it to 1 whenever a method runs.
        os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))
        os.environ.update(environment)
        keep_private(Home.from_environment())
        if Path(folder).is_dir():
            os.chdir(folder)
        self._roles: dict[str, LocalRole] = {}
        self._changes: Changes | None = None
        # Inodes: another command's copy may have taken the place.
        self._copies: dict[Path, int] = {}
        # The kernel ends a process with the thread that has started it, see `rampline.jobs.parent`.
        self._starter = ThreadPoolExecutor(max_workers=1)
        self._forks = fork_server()
        self._starter.submit(self._forks.__enter__).result()

    def begin(self, environment: Mapping[str, str], ports: int, gpus: Sequence[str]) -> tuple[list[int], int]:
        """For the next placement: ports that nobody listens on at the moment, and the number of cores."""
        os.environ.update(environment)
        if gpus or "CUDA_VISIBLE_DEVICES" in os.environ:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus) or "-1"
        return free_ports(ports, host=""), available_cores()

    def lacks(self, paths: Sequence[str]) -> list[str]:
        """Which of these paths are not on this machine."""
        return [path for path in paths if not Path(path).exists()]

    def stage(self, folder: str, content: bytes) -> None:
        """Put a folder where it is on the command's machine, complete or not at all."""
        with complete_directory(Path(folder)) as aside:
            unpack(content, aside)

    def stage_run(self, folder: str, content: bytes) -> None:
        """Put a copy of a run directory, or of a job's folder, here until the `end`; this machine's roles share it."""
        replace_run(content, Path(folder))
        self._copies[Path(folder)] = Path(folder).stat().st_ino

    def tell_changes(self, roots: Collection[Path], *, is_chiefs: bool) -> None:
        """These are copies: from now on what changes in them is told."""
        self._changes = Changes(roots, is_chiefs=is_chiefs)

    def change(self, root: Path, change: Change) -> None:
        """Make a change in this machine's copy."""
        apply([root], change)

    def start(
        self, name: str, job: Job, task: Task, tasks: Sequence[Task], config: RunConfig | None, age_seconds: float
    ) -> dict[str, object]:
        """Start a role; returns its entry in `roles.json`.

        Args:
            name: of this start.
            job: what it does.
            task: which role it is.
            tasks: all that are on this machine.
            config: of the run; `None` for a job without peers.
            age_seconds: since the launch: clocks differ between machines, ages do not.
        """
        own = {"RAMPLINE_LAUNCHED_AT": repr(time.monotonic() - age_seconds)}
        job = replace(job, environment={**job.environment, **own})
        roles = self._roles
        roles[name] = role = self._starter.submit(LocalPlacement(config, tasks).start, task, job).result()
        if roles is not self._roles:  # the command did not wait for TensorFlow to be imported
            end_roles([role], grace_seconds=0)
        return role.describe()

    def updates(self) -> Iterator[Update]:
        """What is new, at least every second, until the placement is over."""
        roles, told, told_at = self._roles, set[str](), 0.0
        while roles is self._roles:
            # Before the files are read, or the last of what a role has written would be missed.
            ended = {name: status for name, status in self.statuses().items() if name not in told}
            changes = self._changes.read() if self._changes else []
            if changes or ended or time.monotonic() - told_at > TELL_SECONDS:
                told_at = time.monotonic()
                told.update(ended)
                lines = {name: (status, roles[name].last_line()) for name, status in ended.items() if name in roles}
                yield Update(silent_seconds=self.silent_seconds(), ended=lines, changes=changes)
            time.sleep(POLL_SECONDS)

    def statuses(self) -> dict[str, int]:
        """Exit statuses of the roles that have ended."""
        found = {name: role.exit_status for name, role in list(self._roles.items())}
        return {name: status for name, status in found.items() if status is not None}

    def silent_seconds(self) -> dict[str, float]:
        """Of each role, the time since its last heartbeat."""
        return {name: role.silent_seconds() for name, role in list(self._roles.items())}

    def signal(self, name: str, number: int) -> None:
        """Signal a role and all it has started."""
        if role := self._roles.get(name):
            role.signal(signal.Signals(number))

    def end(self) -> None:
        """The placement is over: kill what is left of its roles, and remove the copies that they had.

        Raises:
            RuntimeError: when one does not end.
        """
        over, self._roles, self._changes = self._roles, {}, None
        roles = list(over.values())
        end_roles(roles, grace_seconds=0)
        if left := [role.label for role in roles if role.exit_status is None]:
            raise RuntimeError(f"not ended: {', '.join(left)}")
        copies, self._copies = self._copies, {}
        for folder, number in copies.items():
            with suppress(FileNotFoundError):  # one may be in another
                if folder.stat().st_ino == number:
                    remove(folder)
