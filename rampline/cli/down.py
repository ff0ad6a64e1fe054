"""`rampline down`: ends what `rampline up` has started."""

from __future__ import annotations

from rampline.home import Home
from rampline.servers.display import Display


def down() -> None:
    """End the servers and the worker of `rampline up`; flow runs in progress save a checkpoint first."""
    from rampline.servers.down import end_servers

    display = Display()
    with display.waiting("ending the worker and its flow runs, then the servers"):
        display.say(end_servers(Home.from_environment()))
