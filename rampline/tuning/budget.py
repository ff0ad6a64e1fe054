"""The time that the trials may take."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Counts down from its making; a trial that has begun is always finished, so it may be overdrawn by one.

    Args:
        seconds: for all trials together, with the start of their processes.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock, self._began = clock, clock()
        self._reserved = 0.0

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds for further trials; not below 0."""
        return max(0.0, self.seconds - self._reserved - self.spent)

    def reserve(self, seconds: float) -> None:
        """Keep that much, at most half of all, for the last measurement: before against after."""
        self._reserved = min(seconds, self.seconds / 2)
