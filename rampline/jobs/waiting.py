"""Waiting for what another process or machine does, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_SECONDS = 0.05


def wait_until(condition: Callable[[], bool], seconds: float, *, every: float = POLL_SECONDS) -> bool:
    """Wait for a condition, no longer than that; whether it holds.

    Args:
        condition: asked at least once.
        seconds: to wait for it.
        every: seconds between two looks.
    """
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(every)
    return holds
