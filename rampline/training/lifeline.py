"""What an engine tells, and asks, between two calls: that it moves, and whether it should stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


class StopRequested(Exception):
    """All roles have agreed to stop here."""


def _ignore(_call: str) -> None:
    pass


def _never() -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Lifeline:
    """An engine's connection to whoever watches its process.

    Attributes:
        advance: called with a word for the kind of work before each call of a compiled function.
        should_stop: whether this role was asked to stop; a wish, which all workers must agree on.
    """

    advance: Callable[[str], None] = _ignore
    should_stop: Callable[[], bool] = _never
