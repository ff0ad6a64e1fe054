"""Asking a role to stop: it saves a checkpoint where all roles agree to, and leaves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from rampline.cluster.exit_status import STOPPED
from rampline.files import read_json, write_json

LOOK_SECONDS = 0.2


class StopRequest:
    """Whether this run is to stop: a signal to this role, or the file that another role was signalled to write.

    Synchronous workers tell each other in the all-reduce of their steps. Parameter servers and their workers take no
    part in one, so they write `path`, which the chief looks at.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signalled = False
        self._looked_at, self._found = -LOOK_SECONDS, False

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as the request; a second one ends the process at once."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def is_set(self) -> bool:
        """Whether this role, or one without a say of its own, was asked to stop."""
        return self._signalled or self._look()

    @property
    def signalled(self) -> bool:
        """Whether this very process was."""
        return self._signalled

    def pass_on(self, role: str) -> None:
        """Write the file, for the chief."""
        if not self._path.exists():
            write_json(self._path, {"requested_by": role})

    def tell_saved(self) -> None:
        """The chief has saved a checkpoint and leaves: the others may."""
        write_json(self._path, {"saved": True})

    def is_saved(self) -> bool:
        """Whether the chief has."""
        return self._path.is_file() and "saved" in read_json(self._path)

    def _look(self) -> bool:
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at, self._found = now, self._path.is_file()
        return self._found

    def _receive(self, _number: int, _frame: object) -> None:
        if self._signalled:
            os._exit(STOPPED)
        self._signalled = True
