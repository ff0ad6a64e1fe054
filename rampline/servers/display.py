"""What a person sees of `rampline up`: lines, and in a terminal what is being waited for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rich.console import Console


class Display:
    """Prints; a terminal that was closed meanwhile keeps nothing from being ended properly."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, soft_wrap=True)

    @property
    def is_terminal(self) -> bool:
        """Whether a person looks on."""
        return self._console.is_terminal

    def say(self, line: str) -> None:
        """One line."""
        with suppress(OSError):
            self._console.print(line)

    def step(self, subject: str, text: str) -> None:
        """One line about one thing that is done."""
        self.say(f"{subject:<11}{text}")

    @contextmanager
    def waiting(self, text: str) -> Iterator[Stopwatch]:
        """A spinner with `text`, in a terminal; yields a clock of the block."""
        clock = Stopwatch()
        if not self.is_terminal:
            yield clock
            return
        with self._console.status(text):
            yield clock


class Stopwatch:
    """Seconds since it was made; as text such as `12 s`."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __str__(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"
