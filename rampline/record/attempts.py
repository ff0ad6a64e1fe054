"""`attempts.jsonl`: every start of a run and how it ended, for its result, its user and the table of what it cost."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampline.errors import RunFailed
from rampline.record.events import EventReader, EventWriter
from rampline.record.provenance import environment


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A start of a run.

    Attributes:
        number: from 1, over all launchers that the run has had.
        wall_seconds_before: wall time of the attempts before it, as far as their ends were written down.
    """

    number: int
    wall_seconds_before: float


class Attempts:
    """The starts of one run, oldest first; events are `attempt`, `restarted` (one role in place) and `ended`.

    Args:
        file: `RUN_DIR/attempts.jsonl` where the chief is started, else one for the role that is.
    """

    def __init__(self, file: Path) -> None:
        self._writer = EventWriter(file)
        self._past = list(EventReader(file).read())
        self._began_at = time.monotonic()

    def begin(self, workers: int) -> Attempt:
        """Write down that the run is started (again), on which machine, and with how many workers."""
        number = 1 + sum(event["event"] == "attempt" for event in self._past)
        before = sum(event["seconds"] for event in self._past if event["event"] == "ended")
        self._began_at = time.monotonic()
        self._write("attempt", number=number, workers=workers, environment=environment())
        return Attempt(number=number, wall_seconds_before=before)

    def restarted(self, role: str, why: str) -> None:
        """One role was started again while the others went on."""
        self._write("restarted", role=role, why=why)

    def end(self, how: str, lost_at: float | None = None) -> None:
        """The attempt is over, and no role is alive; `lost_at`: `time.monotonic()` when one was found lost."""
        # On a full disk the failure that ended the attempt is the one to tell of.
        with contextlib.suppress(RunFailed):
            self._write_end(how, lost_at)

    def _write_end(self, how: str, lost_at: float | None) -> None:
        lost = {"lost_after_seconds": lost_at - self._began_at} if lost_at else {}
        self._write("ended", how=how, seconds=time.monotonic() - self._began_at, **lost)

    def _write(self, event: str, **fields: Any) -> None:
        self._writer.write(event, **fields)
        # As it reads back, so that figures do not depend on who wrote them.
        self._past.append(json.loads(json.dumps({"event": event, **fields})))


def read_workers(file: Path) -> list[int]:
    """With how many workers each start was made, oldest first; none of one by an earlier version of Rampline."""
    started = (event for event in EventReader(file).read() if event["event"] == "attempt")
    return [event["workers"] for event in started if "workers" in event]


def read_environments(file: Path) -> dict[int, dict[str, str]]:
    """The machine, by `environment`, of every start by its number; empty for one by an earlier version of Rampline."""
    started = (event for event in EventReader(file).read() if event["event"] == "attempt")
    return {event["number"]: event.get("environment", {}) for event in started}
