"""Asking a role to stop: it saves a checkpoint where all roles agree to, and leaves."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

from rampline.files import leave_if_over, read_json, write_json
from rampline.jobs.exit_status import ENDED_AT_ONCE

LOOK_SECONDS = 0.2
# Slurm, systemd and `ray job stop` signal the command and its roles, and then the command asks the roles itself.
REPEAT_SECONDS = 5.0


class StopRequest:
    """Whether this run is to stop: a signal to this role, or the file that another role was signalled to write.

    Synchronous workers tell each other in the all-reduce of their steps. Parameter servers and their workers take no
    part in one, so they write `path`, which the chief looks at.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A server may be started before the chief, whose launcher takes away what an earlier attempt left.
        self._old = self._content()
        self._signalled_at: float | None = None
        self._looked_at, self._found = -LOOK_SECONDS, False

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as the request; one that comes `REPEAT_SECONDS` later ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def is_set(self) -> bool:
        """Whether this role, or one without a say of its own, was asked to stop."""
        return self.signalled or self._look()

    @property
    def signalled(self) -> bool:
        """Whether this very process was."""
        return self._signalled_at is not None

    def pass_on(self, role: str) -> None:
        """Write the file, for the chief, unless there is one: the chief may have saved by now."""
        leave_if_over()
        with contextlib.suppress(FileExistsError), open(self._path, "x") as file:
            json.dump({"requested_by": role, "at": time.time()}, file)

    def tell_saved(self) -> None:
        """The chief has saved a checkpoint and leaves: the others may."""
        write_json(self._path, {"saved": True, "at": time.time()})

    def is_saved(self) -> bool:
        """Whether the chief has."""
        content = self._content()
        return content is not None and content != self._old and "saved" in content

    def _look(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at, self._found = now, "requested_by" in (self._content() or {})
        return self._found

    def _content(self) -> dict | None:
        try:
            return read_json(self._path)
        except (FileNotFoundError, ValueError):  # ValueError: it is being written
            return None

    def _receive(self, _number: int, _frame: object) -> None:
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
        elif now - self._signalled_at >= REPEAT_SECONDS:
            os._exit(ENDED_AT_ONCE)
