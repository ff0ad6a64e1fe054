"""What a role prints, line by line with its level, for those who show it elsewhere than in the role's log."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from rampline.devices import find_devices
from rampline.errors import ERROR_MARK

Line = tuple[int, str]

# absl and TensorFlow's native code: `W0000 00:00:17… file.cc:12] text`.
_NATIVE = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d\S*\s+\d+ \S+\] ")
# Its informational lines are about itself: the processor's instruction sets, libraries that it did not find.
_NATIVE_LEVELS = {"I": logging.DEBUG, "W": logging.WARNING, "E": logging.ERROR, "F": logging.CRITICAL}
_NAMED = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s*:")
# An error by its level, and what every machine without a GPU says.
_NO_CUDA = "failed call to cuInit"
_FIRST_NOISE = "WARNING: All log messages before absl::InitializeLog()"
_TRACEBACK = "Traceback (most recent call last):"
_INDENTED = (" ", "\t")


class RoleOutput:
    """Reads what a role has printed since the last call; a line that is still being written waits for the next."""

    def __init__(self, log: Path, *, from_end: bool = False) -> None:
        self._log = log
        self._offset = log.stat().st_size if from_end and log.is_file() else 0
        self._level = logging.INFO
        self._in_traceback = False

    def read(self) -> list[Line]:
        """New lines, oldest first, with levels of `logging`; a traceback and what is indented belong together."""
        if not self._log.is_file():
            return []
        with open(self._log, "rb") as file:
            file.seek(self._offset)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [self._line(line) for line in complete.decode(errors="replace").splitlines() if line.strip()]

    def _line(self, text: str) -> Line:
        if native := _NATIVE.match(text):
            is_noise = _NO_CUDA in text and not find_devices().gpus
            self._level = logging.DEBUG if is_noise else _NATIVE_LEVELS[native[1]]
        elif text.startswith(_FIRST_NOISE):
            self._level = logging.DEBUG
        elif named := _NAMED.match(text):
            self._level = logging.getLevelNamesMapping()[named[1]]
        elif text.startswith((_TRACEBACK, ERROR_MARK)):
            self._level = logging.ERROR
        elif not text.startswith(_INDENTED):
            # What follows the frames of a traceback is the error itself.
            self._level = logging.ERROR if self._in_traceback else logging.INFO
        self._in_traceback = text.startswith(_TRACEBACK) or (self._in_traceback and text.startswith(_INDENTED))
        return self._level, text


def telling_line(log: Path, offset: int) -> str:
    """Why a process ended: its own error line in the log from `offset` bytes on, else the last line; may be empty."""
    text = log.read_bytes()[offset:].decode(errors="replace") if log.is_file() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    own = [line.removeprefix(ERROR_MARK) for line in lines if line.startswith(ERROR_MARK)]
    return (own or lines or [""])[-1]


def last_lines(log: Path, count: int) -> list[Line]:
    """The last `count` lines of a role's log, with their levels."""
    return RoleOutput(log).read()[-count:]
