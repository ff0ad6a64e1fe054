"""How often a run whose roles were lost is started again, and how soon."""

from __future__ import annotations

import time

from rampline.errors import RunFailed

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0


class RoleLost(Exception):
    """A role ended, or froze, before the run was complete.

    Attributes:
        at: `time.monotonic()` when that was found out.
        will_repeat: whether another attempt would end the same way.
        is_own: whether the role itself failed, and not because of a peer or a signal.
    """

    def __init__(self, message: str, *, will_repeat: bool = False, is_own: bool = False) -> None:
        super().__init__(message)
        self.at, self.will_repeat, self.is_own = time.monotonic(), will_repeat, is_own


class Restarts:
    """The restarts of one launch: of the whole run, and of single parameter-server workers in place."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self._last: tuple[str, int] | None = None

    def take(self) -> bool:
        """Use one up; whether there was one left."""
        self._used += 1
        return self._used <= self._limit

    def take_for_run(self, lost: RoleLost, step: int) -> float:
        """Use one up for the whole run; returns the pause before it, which doubles while no step is won.

        Raises:
            RunFailed: when none is left, or the next attempt would end the same way.
        """
        if lost.will_repeat:
            raise RunFailed(str(lost)) from lost
        if lost.is_own and self._last == (str(lost), step):
            raise RunFailed(f"{lost}: twice the same, with no checkpoint in between") from lost
        if not self.take():
            raise RunFailed(f"{lost}; restarts used up: {self._limit}" if self._limit else str(lost)) from lost
        if self._last and step > self._last[1]:
            self._pause_seconds = FIRST_PAUSE_SECONDS
        self._last = (str(lost), step)
        pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return pause
