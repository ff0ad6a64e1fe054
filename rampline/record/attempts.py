"""`attempts.jsonl`: every start of a run and how it ended, for its result, its user and the table of what it cost."""

from __future__ import annotations

import contextlib
import json
import re
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rampline.errors import RunFailed
from rampline.record.events import EventReader, EventWriter
from rampline.record.provenance import environment
from rampline.record.run_directory import RunDirectory
from rampline.record.units import NONE, TIMES

# Of a table: all of it must fit into a tag of MLflow, which has 8,000 characters.
MOST_ATTEMPTS, MOST_HOSTS, LONGEST_END = 12, 6, 200
COMMAND_KILLED = "its command was killed"
COLUMNS = ("attempt", "hosts of the workers", "steps", "how it ended")
_LOG = re.compile(r" \(log: [^)]*\)")


class Attempts:
    """The starts of one run, oldest first; events are `attempt`, `placed`, `restarted` (one role in place) and `ended`.

    Args:
        file: `RUN_DIR/attempts.jsonl` where the chief is started, else one for the role that is.

    Attributes:
        number: of the last start, from 1, over all launchers that the run has had.
        wall_seconds_before: wall time of the starts before that, as far as their ends were written down.
    """

    def __init__(self, file: Path) -> None:
        self._writer, self._told = EventWriter(file), RunDirectory(file.parent).events_file
        self._past = list(EventReader(file).read())
        self._began_at = time.monotonic()
        self.number, self.wall_seconds_before = 0, 0.0

    def begin(
        self,
        workers: int,
        accumulate: int | None = None,
        *,
        machine: Mapping[str, str] | None = None,
        on_cpu: bool = False,
    ) -> None:
        """Write down that the run is started (again), with how many workers and micro-batches.

        Args:
            workers: how many.
            accumulate: micro-batches of a step, where `batch.accumulate` is `auto`.
            machine, on_cpu: see `environment`.
        """
        self._end_killed()
        self.number = 1 + sum(event["event"] == "attempt" for event in self._past)
        self.wall_seconds_before = sum(event["seconds"] for event in self._past if event["event"] == "ended")
        self._began_at = time.monotonic()
        parts = {} if accumulate is None else {"accumulate": accumulate}
        self._write(
            "attempt", number=self.number, workers=workers, **parts, environment=environment(machine, on_cpu=on_cpu)
        )

    def placed(self, hosts: Sequence[str]) -> None:
        """Its roles are started; `hosts` are those of its workers, in their order."""
        self._write("placed", hosts=list(hosts))

    def restarted(self, role: str, why: str) -> None:
        """One role was started again while the others went on."""
        self._write("restarted", role=role, why=why)

    def end(self, how: str, lost_at: float | None = None) -> None:
        """The attempt is over, and no role is alive; `lost_at`: `time.monotonic()` when one was found lost."""
        lost = {"lost_after_seconds": lost_at - self._began_at} if lost_at else {}
        # On a full disk the failure that ended the attempt is the one to tell of.
        with contextlib.suppress(RunFailed):
            self._write("ended", how=how, seconds=time.monotonic() - self._began_at, **lost)

    def _end_killed(self) -> None:
        """Write down the end of an attempt whose command was killed; it counts as long as its chief has told of it."""
        if not self._past or self._past[-1]["event"] == "ended":
            return
        started = last = dict[str, Any]()
        for last in EventReader(self._told).read():
            started = last if last["event"] == "started" else started
        seconds = 0.0
        if started.get("attempt") == sum(event["event"] == "attempt" for event in self._past):
            # Earlier versions wrote no `monotonic`: then it counts as before, not at all.
            seconds = started.get("startup_seconds", 0.0) + last.get("monotonic", 0.0) - started.get("monotonic", 0.0)
        self._write("ended", how=COMMAND_KILLED, seconds=seconds)

    def _write(self, event: str, **fields: Any) -> None:
        self._writer.write(event, **fields)
        # As it reads back, so that figures do not depend on who wrote them.
        self._past.append(json.loads(json.dumps({"event": event, **fields})))


def read_workers(file: Path) -> list[int]:
    """With how many workers each start was made, oldest first; none of one by an earlier version of Rampline."""
    return [event["workers"] for event in EventReader(file).read("attempt") if "workers" in event]


def read_accumulate(file: Path) -> int:
    """The micro-batches of the last start of a run with `batch.accumulate: auto`; 1 before the first."""
    return [1, *(event["accumulate"] for event in EventReader(file).read("attempt") if "accumulate" in event)][-1]


def read_environments(file: Path) -> dict[int, dict[str, str]]:
    """The machine, by `environment`, of every start by its number; empty for one by an earlier version of Rampline."""
    return {event["number"]: event.get("environment", {}) for event in EventReader(file).read("attempt")}


def tell_attempts(run_directory: RunDirectory) -> list[tuple[str, ...]]:
    """Where the last attempts ran and how they ended, a row of cells for each, under `COLUMNS`.

    Steps are those that a checkpoint has kept: the next attempt goes on from there. A run that was started once, on one
    host, has no rows.
    """
    starts = list[dict[str, Any]]()
    for event in EventReader(run_directory.attempts_file).read():
        if event["event"] == "attempt":
            starts.append(event)
        elif starts:
            starts[-1] |= event
    if len(starts) < 2 and len({host for start in starts for host in start.get("hosts", ())}) < 2:
        return []
    steps = _steps_of_attempts(run_directory)
    ends = [start.get("how", COMMAND_KILLED) for start in starts[:-1]] + [starts[-1].get("how", NONE)]
    rows = [
        (str(start["number"]), write_hosts(start.get("hosts", ())), steps.get(start["number"], NONE), _shorten(how))
        for start, how in zip(starts, ends, strict=True)
    ]
    return rows[-MOST_ATTEMPTS:]


def write_hosts(hosts: Sequence[str]) -> str:
    """Each host once, with the number of its workers where it has several; of many hosts the first ones."""
    counted = [f"{host} {TIMES}{count}" if count > 1 else host for host, count in Counter(hosts).items()]
    more = len(counted) - MOST_HOSTS
    return ", ".join(counted[:MOST_HOSTS]) + (f" and {more} more" if more > 0 else "") or NONE


def _steps_of_attempts(run_directory: RunDirectory) -> dict[int, str]:
    """`FIRST → LAST` by the number of the attempt; an attempt that has saved nothing has no last one."""
    steps, number = dict[int, tuple[int, ...]](), 1
    for event in run_directory.read_events("started", "checkpoint"):
        if event["event"] == "started":
            number = event.get("attempt", 1)
            steps[number] = (event.get("first_step", 0),)
        elif number in steps:
            steps[number] = (steps[number][0], event["step"])
    return {number: f"{found[0]} → {found[-1] if found[1:] else ''}".rstrip() for number, found in steps.items()}


def _shorten(how: str) -> str:
    return textwrap.shorten(_LOG.sub("", how), LONGEST_END, placeholder=" …")
