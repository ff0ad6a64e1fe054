"""`rampline down`: ends the servers of a home, wherever they were started."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import psutil

from rampline.errors import RamplineError
from rampline.record.home import Home
from rampline.servers.ending import end_leftovers
from rampline.servers.processes import lock_holder, send

# Longer than the orderly way takes.
DOWN_SECONDS = 75.0
# It gives its lock back a moment before it is gone.
LAST_SECONDS = 5.0
POLL_SECONDS = 0.1


def end_servers(home: Home) -> str:
    """End the `rampline up` of `home`, and what an earlier one has left; returns what was done, for the user.

    Raises:
        RamplineError: when it cannot be ended.
    """
    holder = lock_holder(home)
    if holder is None:
        found = end_leftovers(home)
        return "ended what a `rampline up` that was killed has left" if found else f"nothing is up in {home.root}"
    send(holder, signal.SIGTERM)
    if not _is_free_after(home, DOWN_SECONDS):
        send(holder, signal.SIGKILL)
        if not _is_free_after(home, 10.0):
            raise RamplineError(f"process {holder}, which runs the servers of {home.root}, cannot be ended")
    _wait_until_gone(holder)
    end_leftovers(home)
    return f"ended `rampline up` (process {holder}) and all that it had started"


def _wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + LAST_SECONDS
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _is_free_after(home: Home, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while lock_holder(home) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
