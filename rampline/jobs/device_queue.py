"""The devices of this machine as a queue: executions get them in the order in which they were submitted.

Each execution that wants devices has a ticket, a small file that its process keeps locked. The kernel unlocks it when
the process ends, however it ends, so a killed holder never blocks the others. Tickets are served strictly in order and
all at once: nobody is overtaken, and nobody holds a part of what it needs while it waits for the rest.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from rampline.config import RunConfig
from rampline.devices import find_devices, visible_gpus_by_number
from rampline.errors import ClusterConfigError
from rampline.files import JsonData, lock_now, locked
from rampline.jobs.roles import variable
from rampline.record.home import Home
from rampline.record.units import write_number_of

QUEUE, POLL_SECONDS = "queue.lock", 0.5
# In the name of a ticket's file: the execution's may hold the path of a study.
LONGEST_NAME = 100

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Ticket(JsonData):
    """A place in the queue.

    Attributes:
        name: of the execution, for messages, such as `digits/20261121-184344-6427`.
        submitted_at: decides the order, in seconds since 1970.
        devices: how many it needs; with 0 it waits for nobody, and nobody for it.
        owner: who wants them, such as the id of a flow run.
        among: the devices that it may have, by number: GPUs, else slots of the CPU; see `visible_gpus_by_number`.
        granted: those that it has; empty while it waits.
    """

    name: str
    submitted_at: float
    devices: int
    owner: str = ""
    among: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Sorts in the order of the queue; the process tells tickets of one execution apart."""
        name = re.sub(r"[^A-Za-z0-9.]+", "-", self.name)[:LONGEST_NAME]
        return f"{self.submitted_at:017.6f}-{name}-{os.getpid()}.json"


def devices_of(config: RunConfig) -> int:
    """How many devices of this machine a run holds: its GPUs, or the whole CPU, which counts as one.

    0 for a run on virtual devices on a machine with GPUs.
    """
    gpus = len(find_devices().gpus)
    if not gpus:
        return 1
    if config.cluster.virtual_devices:
        return 0
    return min(gpus, config.cluster.workers * config.cluster.replicas)


@contextmanager
def hold_devices(home: Home, ticket: Ticket, *, slots: int, log: Log) -> Iterator[tuple[str, ...]]:
    """Wait for devices, and hold them for the length of the block; yields them as `Ticket.among` has them.

    On a machine with GPUs `CUDA_VISIBLE_DEVICES` names these alone inside the block, for all processes started there.

    Args:
        home: whose queue; there is one per host, and one for each Slurm job there, which has its own devices.
        ticket: what is wanted.
        slots: devices that may be in use at once, of this machine's or fewer.
        log: gets a line when it has to wait, and for whom.

    Raises:
        ClusterConfigError: when there are not so many devices at all.
    """
    if ticket.devices > slots:
        raise ClusterConfigError(
            f"{ticket.name} needs {ticket.devices} devices at once: {find_devices().slots} allows {slots}"
        )
    folder = _folder(home)
    path = folder / ticket.file_name
    gpus = visible_gpus_by_number()
    ticket = dataclasses.replace(ticket, among=tuple(gpus or map(str, range(slots))) if ticket.devices else ())
    with ExitStack() as stack:
        # Between being made and being locked a ticket looks like one that a dead process left.
        with locked(folder / QUEUE):
            file = stack.enter_context(open(path, "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
            _write(path, ticket)
        stack.callback(path.unlink, missing_ok=True)
        granted = _wait(folder, path, ticket, slots, log)
        if granted and gpus:
            stack.enter_context(variable("CUDA_VISIBLE_DEVICES", ",".join(gpus[number] for number in granted)))
        yield granted


def owners(home: Home) -> set[str]:
    """Who waits for devices of this machine, or has some."""
    folder = _folder(home)
    with locked(folder / QUEUE):
        return {ticket.owner for ticket in _living_tickets(folder).values()}


def _folder(home: Home) -> Path:
    name = "-".join(filter(None, [socket.gethostname(), os.environ.get("SLURM_JOB_ID")]))
    folder = home.root / "devices" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _wait(folder: Path, path: Path, ticket: Ticket, slots: int, log: Log) -> tuple[str, ...]:
    told = ""
    while True:
        with locked(folder / QUEUE):
            living = _living_tickets(folder).items()
            tickets = {name: other for name, other in living if {*other.among} & {*ticket.among}}
            in_use = {device for other in tickets.values() for device in other.granted}
            earlier = [other for name, other in tickets.items() if name < path.name]
            free = [device for device in ticket.among if device not in in_use]
            left = slots - len(ticket.among) + len(free)  # of a machine with more GPUs than may be in use at once
            if all(other.granted for other in earlier) and min(len(free), left) >= ticket.devices:
                granted = tuple(free[: ticket.devices])
                _write(path, dataclasses.replace(ticket, granted=granted))
                return granted
        others = [other.name for other in tickets.values() if other.granted] or [other.name for other in earlier]
        wanted = write_number_of("device", ticket.devices)
        waits_for = f"waiting for {wanted}: {', '.join(sorted(set(others)))} has the machine"
        if waits_for != told:
            log(told := waits_for)
        time.sleep(POLL_SECONDS)


def _living_tickets(folder: Path) -> dict[str, Ticket]:
    """Tickets in the order of the queue, by file; those whose process is gone are taken out."""
    living = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(FileNotFoundError), open(path) as file:
            if lock_now(file):
                path.unlink()
                continue
            living[path.name] = Ticket.from_dict(json.load(file))
    return living


def _write(path: Path, ticket: Ticket) -> None:
    """In place: a renamed file would be another one than the locked. Readers hold the lock of the queue."""
    path.write_text(json.dumps(dataclasses.asdict(ticket)))
