"""Watching the processes of `rampline up`: one that ends is started again, until that happens too often."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rampline.errors import RamplineError
from rampline.servers.service import Service

POLL_SECONDS = 0.5
# So many ends within so many seconds are too often; the pause before another start doubles with each.
MOST_ENDS = 5
WITHIN_SECONDS = 180.0
FIRST_PAUSE_SECONDS = 1.0


class Watch:
    """Keeps services running.

    Args:
        services: all have been started.
        say: tells the user a line.
        on_start: called after a service was started again.
    """

    def __init__(
        self, services: Sequence[Service], *, say: Callable[[str], None], on_start: Callable[[], None]
    ) -> None:
        self._services, self._say, self._on_start = services, say, on_start
        self._ends: dict[str, list[float]] = {service.name: [] for service in services}
        self._awaited: set[str] = set()

    def look(self) -> None:
        """Start again what has ended; to be called every `POLL_SECONDS`.

        Raises:
            RamplineError: when a service ends too often.
        """
        for service in self._services:
            if ended := service.how_it_ended():
                self._start_again(service, ended)
            elif service.name in self._awaited and service.answers():
                self._awaited.discard(service.name)
                self._say(f"{service.title} is back")

    def _start_again(self, service: Service, ended: str) -> None:
        now = time.monotonic()
        ends = [end for end in self._ends[service.name] if now - end < WITHIN_SECONDS] + [now]
        self._ends[service.name] = ends
        if len(ends) >= MOST_ENDS:
            seconds = ends[-1] - ends[0]
            raise RamplineError(
                f"{service.title} ended {len(ends)} times within {seconds:.0f} s, the last time with {ended}: "
                f"{service.last_line()}; see {service.log}"
            )
        pause = FIRST_PAUSE_SECONDS * 2 ** (len(ends) - 1)
        self._say(f"{service.title} ended ({ended}) and is started again in {pause:.0f} s; see {service.log}")
        time.sleep(pause)
        service.start()
        self._awaited.add(service.name)
        self._on_start()
