"""`python -m rampline.servers.caretaker`: ends all that `rampline up` has started if `up` itself was killed.

Nobody can do that at the moment of a `kill -9`, hence a process of its own: in its own session, and idle on a pipe that
only `up` holds. As after a Ctrl-C, flow runs may save their checkpoints first.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rampline.record.home import Home
from rampline.servers.ending import end_all
from rampline.servers.processes import start
from rampline.servers.running import servers_folder

# Written by `up`; without it the end of the pipe means that it was killed.
DONE = b"done\n"
DISMISS_SECONDS = 5


@contextmanager
def caretaker(home: Home, environment: dict[str, str]) -> Iterator[Callable[[], None]]:
    """Have one for the length of the block; yields a function that starts another if that one was killed.

    Leaving the block sends it home: by then all must have ended.
    """
    process = _start(home, environment)

    def replace() -> None:
        nonlocal process
        if process.poll() is not None:
            process = _start(home, environment)

    try:
        yield replace
    finally:
        with suppress(subprocess.TimeoutExpired):
            process.communicate(DONE, timeout=DISMISS_SECONDS)


def main() -> None:
    """Wait for the end of the pipe on standard input."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.readline() != DONE:
        end_all(Home.from_environment())


def _start(home: Home, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    folder = servers_folder(home)
    return start(
        ["-m", "rampline.servers.caretaker"],
        part="caretaker",
        home=home,
        environment={**environment, "RAMPLINE_HOME": str(home.root)},
        folder=folder,
        log=folder / "caretaker.log",
    )


if __name__ == "__main__":
    main()
