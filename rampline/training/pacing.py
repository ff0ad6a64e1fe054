"""How many steps one call of a compiled loop makes: doubled until a call is about a second of work."""

from __future__ import annotations

from collections.abc import Iterator

# What a call is for, beside the kinds of probes.
TRAIN = "train"
# Calls take between this and its double: a stop is seen soon, and what a call costs, some milliseconds, is below 1 %.
LEAST_CALL_SECONDS = 0.5


class CallPacer:
    """Chooses the number of steps per call from what earlier calls took.

    Roles that train together must make the same calls: they give it the same figures.

    Args:
        setting: `steps_per_call` of the run, a number or `auto`.
        compiling: the first calls, whose time says nothing.
    """

    def __init__(self, setting: int | str, *, compiling: int = 1) -> None:
        self._steps = setting if isinstance(setting, int) else 1
        self._is_auto = self._is_growing = setting == "auto"
        self._compiling = compiling

    def longest(self, kind: str, steps: int) -> int:
        """Steps of the next call, when so many are left; a probe with `auto` makes them all at once."""
        return steps if self._is_auto and kind != TRAIN else min(self._steps, steps)

    def split(self, kind: str, steps: int) -> Iterator[tuple[int, int]]:
        """First step and number of steps of each call for so many steps."""
        start = 0
        while start < steps:
            count = self.longest(kind, steps - start)
            yield start, count
            start += count

    def note(self, steps: int, seconds: float) -> None:
        """A call of so many steps took that long; one that an epoch's end has cut short says nothing."""
        if not self._is_growing or steps < self._steps:
            return
        if self._compiling:
            self._compiling -= 1
        elif seconds < LEAST_CALL_SECONDS:
            self._steps *= 2
        else:
            self._is_growing = False
