"""Asking a role to stop: it saves a checkpoint where all roles agree to, and leaves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from rampline.cluster.exit_status import ENDED_AT_ONCE
from rampline.files import read_json, write_json

LOOK_SECONDS = 0.2


class StopRequest:
    """Whether this run is to stop: a signal to this role, or the file that another role was signalled to write.

    Synchronous workers tell each other in the all-reduce of their steps. Parameter servers and their workers take no
    part in one, so they write `path`, which the chief looks at.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # A server may be started before the chief, whose launcher takes away what an earlier attempt left.
        self._old = self._content()
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
        if self._content() in (None, self._old):
            write_json(self._path, {"requested_by": role, "at": time.time()})

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
        except FileNotFoundError:
            return None

    def _receive(self, _number: int, _frame: object) -> None:
        if self._signalled:
            os._exit(ENDED_AT_ONCE)
        self._signalled = True
