"""`delivery.json`: whether a run or an execution is running, how it ended, and whether MLflow has all of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rampline.errors import Preempted
from rampline.files import read_json, write_json
from rampline.record.provenance import process_identity, process_is_gone

FILE = "delivery.json"
RUNNING = "RUNNING"
# How a run or an execution ended, and what MLflow has for it.
STATUSES = {"COMPLETE": "FINISHED", "FAILED": "FAILED", "KILLED": "KILLED", "PREEMPTED": "KILLED"}
GONE = "the process that ran it is gone"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class End:
    """How a run or an execution ended.

    Attributes:
        status: a key of `STATUSES`.
        failure: why it did not end well, one line.
    """

    status: str
    failure: str | None = None

    @classmethod
    def by(cls, error: BaseException, stopped: Callable[[], str | None]) -> End:
        """The end that an error, a signal or a cancellation makes.

        Args:
            error: what left the block of the work.
            stopped: asked after a signal: how the work stopped with a checkpoint, as it was asked to; `None` if not.
        """
        if isinstance(error, Preempted):
            return cls("PREEMPTED", str(error))
        if isinstance(error, Exception):
            return cls("FAILED", str(error))
        how = stopped()
        return cls("PREEMPTED", how) if how else cls("KILLED", "interrupted")


@dataclass(frozen=True, kw_only=True)
class DeliveryState:
    """What `delivery.json` says.

    Attributes:
        status: `RUNNING`, or how it ended: a key of `STATUSES`.
        failure: why it did not end well, one line.
        process: `process_identity` of who wrote this.
        delivered: whether MLflow had all of it, in the store that was set then.
    """

    status: str
    failure: str | None
    process: str
    folder: Path
    delivered: bool = False

    @property
    def is_running(self) -> bool:
        """Whether a process works on it; one of another machine is taken for alive, because nobody can look."""
        return self.status == RUNNING and not process_is_gone(self.process, self.folder)

    @property
    def is_ours(self) -> bool:
        """Whether this process wrote it."""
        return self.process == process_identity()


def mark_undelivered(folder: Path, status: str, failure: str | None = None) -> None:
    """Write `delivery.json` before MLflow is told.

    A folder that cannot be written to is told of, because training must not fail of it.
    """
    try:
        write_json(folder / FILE, {"status": status, "failure": failure, "process": process_identity()})
    except OSError as error:
        logger.warning("%s cannot be written: %s", folder / FILE, error)


def read_delivery(folder: Path) -> DeliveryState | None:
    """What `delivery.json` says, if it is there."""
    return DeliveryState(**read_json(folder / FILE), folder=folder) if (folder / FILE).is_file() else None


def is_undelivered(folder: Path) -> bool:
    """Whether something is to be delivered, or will be by the process that works on it."""
    state = read_delivery(folder)
    return state is not None and not state.delivered


def mark_delivered(folder: Path, status: str, failure: str | None = None) -> None:
    """MLflow has all of the folder; how it ended is kept for another store."""
    write_json(folder / FILE, {"status": status, "failure": failure, "process": process_identity(), "delivered": True})


def mark_killed(execution: Path, process: str, failure: str, *, is_taken_over: bool = False) -> int:
    """Mark KILLED what `process` left RUNNING of an execution and its runs; returns how much that is.

    What another process has taken over meanwhile goes on. Of what another machine has taken over nothing is delivered.
    """
    states = {file.parent: read_delivery(file.parent) for file in (execution / FILE, *execution.glob(f"*/{FILE}"))}
    left = [folder for folder, state in states.items() if state and (state.status, state.process) == (RUNNING, process)]
    for folder in left:
        (mark_delivered if is_taken_over else mark_undelivered)(folder, "KILLED", failure)
    return len(left)
