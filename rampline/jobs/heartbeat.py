"""Heartbeats: a role's sign that it moves, and who looks for it. No clock of the wall is asked: it may jump."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rampline.files import leave_if_over

# Tracing and compiling are part of the first call of each kind.
FIRST_CALL_SECONDS = 600.0
# A call takes as long as those before it, give or take a busy machine.
SLOWER_THAN_EVER = 5.0
# The last batch of an epoch has another shape, for which XLA compiles once more.
LIKE_THE_FIRST = 1.5
# More than lies between two looks at a clock here.
PAUSE_SECONDS = 2.0


class RunningClock:
    """Seconds for which this process has run, looked at about every second.

    A pause of it counts as `PAUSE_SECONDS`: a frozen container, a suspended job. What it waits for was paused, too, or
    has gone on without it, and nobody has looked.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds, self._looked_at = 0.0, time.monotonic()

    def __call__(self) -> float:
        """How many by now."""
        with self._lock:
            now = time.monotonic()
            self._seconds += min(now - self._looked_at, PAUSE_SECONDS)
            self._looked_at = now
            return self._seconds


class Heartbeat:
    """A file that changes about every second while this process is healthy: a count, and what the process is at.

    A thread of its own writes it: a process that was stopped, or whose interpreter is locked up, no longer does. The
    thread also looks at the main thread: when that has been in one call for longer than it ever was, by far, it waits
    for something that will not come (a peer behind a dead network, a deadlock).

    Args:
        path: the file; overwritten in place.
        timeout_seconds: how long a call may take at least, once one of its kind has come back.
        on_overdue: called with the kind of call and its seconds, from the thread, when the main thread is stuck.
    """

    def __init__(self, path: Path, *, timeout_seconds: float, on_overdue: Callable[[str, float], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        self._timeout_seconds, self._on_overdue = timeout_seconds, on_overdue
        self._beats = 0
        self._first, self._longest = dict[str, float](), dict[str, float]()
        self._clock = RunningClock()
        self._call, self._since = "start", self._clock()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat; the thread ends with the process."""
        self._thread.start()

    def advance(self, call: str) -> None:
        """The main thread has come back from what it did, and begins a call of kind `call`."""
        now = self._clock()
        seconds = now - self._since
        if self._call in self._first:
            self._longest[self._call] = max(self._longest.get(self._call, 0.0), seconds)
        else:
            self._first[self._call] = seconds
        is_other, self._call, self._since = call != self._call, call, now
        if is_other:
            self._write()

    @property
    def is_overdue(self) -> bool:
        """Whether the main thread has been in its call for too long."""
        allowed = FIRST_CALL_SECONDS
        if self._call in self._first:
            first = self._first[self._call]
            allowed = max(LIKE_THE_FIRST * first, SLOWER_THAN_EVER * self._longest.get(self._call, first))
        return self._clock() - self._since > max(allowed, self._timeout_seconds)

    def _run(self) -> None:
        while True:
            leave_if_over()
            self._beats += 1
            self._write()
            if self.is_overdue:
                self._on_overdue(self._call, self._clock() - self._since)
            time.sleep(min(1.0, self._timeout_seconds / 10))

    def _write(self) -> None:
        try:
            os.pwrite(self._file, f"{self._beats:012d} {self._call:<12}\n".encode(), 0)
        except OSError:
            # A full disk must not look like a frozen process for ever: the next beat tries again.
            return


class HeartbeatWatch:
    """Looks at one role's heartbeat file, by this process's own clock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.unlink(missing_ok=True)
        self._beat: bytes = b""
        self._clock = RunningClock()
        self._changed_at = self._clock()

    def silent_seconds(self) -> float:
        """Time since the last beat; 0 before the first: until the roles have met, another limit holds."""
        beat = self._path.read_bytes() if self._path.is_file() else b""
        now = self._clock()
        if beat != self._beat:
            self._beat, self._changed_at = beat, now
        return now - self._changed_at if self._beat else 0.0
