"""What a run tells while it goes on: one JSON object per line in `events.jsonl`, appended by the chief alone.

Events: `met` (all roles are there), `started`, `progress`, `epoch`, `checkpoint`, `decided` (it stops before its last
epoch), `rested` (at a rung), `warning`, `stopped` (on request), `finished`, `failed`. Training waits for no reader.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rampline.errors import RunFailed
from rampline.files import leave_if_over

PROGRESS_INTERVAL_SECONDS, LONGEST_INTERVAL_SECONDS = 0.25, 10.0
# Of the time that a writer is there: in a week progress makes less than 20 MB.
INTERVAL_SHARE = 1 / 2000
BLOCK_BYTES = 64 * 1024


class EventWriter:
    """Appends events; `progress` four times a second at most, after hours every 10 s. `seconds` is what that took."""

    def __init__(self, path: Path) -> None:
        leave_if_over()
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_half_line(path)
        self._path = path
        self._file = open(path, "a", buffering=1)  # noqa: SIM115 - lives as long as the process
        self._began_at, self._last_progress = time.monotonic(), -math.inf
        self.seconds = 0.0

    def write(self, event: str, **fields: Any) -> None:
        """Append one event; figures that are not finite become null, because JSON has no NaN.

        Raises:
            RunFailed: when the disk does not take it.
        """
        started = time.perf_counter()
        try:
            # Between two events of one process `monotonic` counts: the clock of the wall may be set.
            leave_if_over()
            clocks = {"time": time.time(), "monotonic": time.monotonic()}
            self._file.write(json.dumps({"event": event, **clocks, **finite(fields)}) + "\n")
            self._file.flush()
        except OSError as error:
            raise RunFailed(f"{self._path} cannot be written: {error.strerror}") from error
        self.seconds += time.perf_counter() - started

    def finished(self, result: Mapping[str, Any]) -> None:
        """Tell the end of a training by its `result.json`."""
        best = {name: result[name] for name in ("best_epoch", "best_val_accuracy")}
        self.write("finished", metrics={"train_seconds": result["train_seconds"]}, **best)

    def progress(self, **fields: Any) -> None:
        """Append a progress event unless one was written a moment ago, or the disk does not take it."""
        now = time.monotonic()
        interval = max(PROGRESS_INTERVAL_SECONDS, INTERVAL_SHARE * (now - self._began_at))
        if now - self._last_progress >= min(interval, LONGEST_INTERVAL_SECONDS):
            self._last_progress = now
            # A run must not end for want of this line; an event that counts is written later, or ends it.
            with contextlib.suppress(RunFailed):
                self.write("progress", **fields)


class EventReader:
    """Reads what was appended since the last call; a line that is still being written waits for the next."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self._path = path
        self._offset = _complete_size(path) if from_end else 0

    def read(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """New events of these kinds, oldest first; of all, where none is named.

        Lines of other kinds are passed over as bytes: of a long run nearly all tell progress.
        """
        wanted = tuple(b'{"event": "%s"' % kind.encode() for kind in kinds)
        if not self._path.is_file():
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                if not wanted or line.startswith(wanted):
                    yield json.loads(line)


def with_attempt(first_epochs: list[int], first: int) -> list[int]:
    """The first epochs of a run's attempts, in order, and that of one more: epochs from there on are trained anew."""
    return [*(known for known in first_epochs if known < first), first]


def without_tracing(epochs: Sequence[int], first_epochs: Collection[int]) -> list[int]:
    """Of a run's epochs those without the first of each attempt, which holds tracing, as long as there are others.

    Of one epoch none is left.
    """
    later = epochs[1:]
    return [epoch for epoch in later if epoch not in first_epochs] or [*later]


def append_line(path: Path, content: Mapping[str, Any]) -> None:
    """Append a JSON object by one write: the line is there whole or not at all, also after a kill."""
    line = json.dumps(content) + "\n"
    leave_if_over()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def drop_half_line(path: Path) -> None:
    """Cut off what a writer that was killed left behind its last line, so that the next event is a line of its own."""
    if path.is_file():
        os.truncate(path, _complete_size(path))


def _complete_size(path: Path) -> int:
    """Size of a file up to its last line break, which is looked for from the end: the file may be large."""
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def finite(value: Any) -> Any:
    """`value` with null for every figure in it that is not finite: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
