"""Where processes start: what a launcher gives, and how all that it has started is asked, told and ended.

`rampline.jobs.local` starts them on this machine. Another launcher needs these three classes and nothing else.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rampline.config import RunConfig
from rampline.jobs.tf_config import Task
from rampline.jobs.waiting import wait_until

if TYPE_CHECKING:
    from rampline.jobs.job import Job

TERMINATE_GRACE_SECONDS = 1.0
# After SIGKILL. What is not gone then is on a machine that does not answer, or waits for a disk that does not.
KILL_SECONDS = 10.0


class PlaceLost(Exception):
    """The machine of a role is gone, or does not answer: the role cannot be started there again."""


class Role(Protocol):
    """A started process, wherever it runs.

    Attributes:
        label: `worker 1`, or `evaluation`, for messages.
        task: its place among its peers; `ALONE` for a job without any.
        log: file with all it prints, as far as that has come here.
    """

    label: str
    task: Task
    log: Path

    @property
    def exit_status(self) -> int | None:
        """`None` while it runs, negative if a signal ended it."""
        ...

    def silent_seconds(self) -> float:
        """Time since its last heartbeat; 0 before the first."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Signal it and all it has started. Returns within a second, whether or not the signal has arrived."""
        ...

    def last_line(self) -> str:
        """Why it ended: its own error line, else the last line that it has printed."""
        ...

    def describe(self) -> dict[str, object]:
        """Its entry in `roles.json`."""
        ...


class Placement(Protocol):
    """Where the roles of one attempt are, or jobs that are done together."""

    @property
    def tasks(self) -> Sequence[Task]:
        """The roles that are started here, the one that leads first."""
        ...

    @property
    def warning(self) -> str | None:
        """One line for the user where others than the run's roles reach TensorFlow's servers."""
        ...

    @property
    def machine(self) -> Mapping[str, str] | None:
        """Where it is by `rampline.record.provenance.environment`; `None` for this machine, or machines like it."""
        ...

    def start(self, task: Task, job: Job) -> Role:
        """Start the job as that role: with its TF_CONFIG, its share of cores and GPUs, and `logs/ROLE-INDEX.log`.

        It has a session of its own, and ends when this process is gone.
        """
        ...

    def close(self) -> frozenset[str]:
        """Give the places back; the machines of which it is not known that nothing runs there any more."""
        ...


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine that a launcher has.

    Attributes:
        name: its host name, or what the launcher calls it.
        state: in the launcher's own words, such as `idle`.
        free_cores, free_gpus: `None` where the launcher does not count.
        gpu_kind: such as `a100`, where it is known.
        groups: such as partitions; the one that is taken where none is named ends with `*`.
    """

    name: str
    state: str
    cores: int
    free_cores: int | None = None
    gpus: int = 0
    free_gpus: int | None = None
    gpu_kind: str = ""
    memory_bytes: int | None = None
    groups: tuple[str, ...] = ()


class Launcher(Protocol):
    """Starts processes in one kind of place."""

    def nodes(self) -> Sequence[Node]:
        """The machines that there are, in use or not; also where nothing runs yet.

        Raises:
            ClusterConfigError: where nobody answers who knows them.
        """
        ...

    def check(self, config: RunConfig) -> None:
        """Refuse a run that can never be placed, by a `ClusterConfigError`."""
        ...

    def room(self, config: RunConfig, *, avoid: Collection[str] = ()) -> int:
        """How many of the run's workers there are places for now, those that it has among them."""
        ...

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> Placement:
        """Choose where the roles of a run go, anew for each attempt, and on none of the machines `avoid`.

        An elastic run may have fewer than these `workers`, where there is no room for them, but at least
        `cluster.min_workers`; each gets what one of all would have. `None`: no fewer than the configuration says.
        """
        ...

    def place_jobs(self, jobs: Sequence[Job]) -> Placement:
        """Choose one machine for jobs without peers, with the GPUs that they need; each is started there as `ALONE`."""
        ...


def workers_now(launcher: Launcher, config: RunConfig, avoid: Collection[str] = ()) -> int | None:
    """The workers that an elastic run would have now, `None` for all of one that is not.

    With no room for the least, the launcher says what is to do.
    """
    cluster = config.cluster
    if cluster.min_workers is None:
        return None
    return max(cluster.min_workers, min(cluster.workers, launcher.room(config, avoid=avoid)))


def end_roles(roles: Sequence[Role], grace_seconds: float = TERMINATE_GRACE_SECONDS) -> None:
    """SIGTERM, and after a grace SIGKILL: TensorFlow may swallow the first."""
    for number, seconds in ((signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILL_SECONDS)):
        for role in roles:
            role.signal(number)
        wait_until(lambda: are_gone(roles), seconds)


def are_gone(roles: Sequence[Role]) -> bool:
    """Whether all have ended."""
    return all(role.exit_status is not None for role in roles)
