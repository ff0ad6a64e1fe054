"""A process that is kept running: how it is started, whether it answers, how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rampline.credentials import mask
from rampline.errors import RamplineError
from rampline.record.home import Home
from rampline.servers.processes import created, listens, send_group, start
from rampline.servers.running import ProcessState, servers_folder

ANSWER_SECONDS = 180.0
POLL_SECONDS = 0.2
TAIL_BYTES = 4096


@dataclass(kw_only=True)
class Service:
    """One of `prefect`, `mlflow` and `worker`.

    Attributes:
        name: as above; its log is `servers/NAME.log`.
        title: how people are told of it.
        home: whose it is.
        module: Python module that is run; it gets this process's id as its first argument, to end with it.
        arguments: what follows.
        environment: all of its environment.
        folder: where it runs.
        health: whether it answers; is given when the process was created, in seconds since 1970.
        port: where it listens; who else listens there is not told the secret.
    """

    name: str
    title: str
    home: Home
    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    health: Callable[[float], bool]
    port: int | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    state: ProcessState | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """All that it prints, with every start."""
        return servers_folder(self.home) / f"{self.name}.log"

    def start(self) -> None:
        """Start it, again too; what is left of the last time is ended."""
        self._end_rest()
        command = ["-m", self.module, str(os.getpid()), *self.arguments]
        self.process = start(
            command, part=self.name, home=self.home, environment=self.environment, folder=self.folder, log=self.log
        )
        self.state = ProcessState(pid=self.process.pid, created=created(self.process.pid), log=str(self.log))

    def answers(self) -> bool:
        """Whether it works."""
        if self.state is None or (self.port is not None and not listens(self.state.pid, self.port)):
            return False
        return self.health(self.state.created)

    def how_it_ended(self) -> str | None:
        """Such as `exit status 1` or `SIGKILL`; `None` while it runs."""
        status = None if self.process is None else self.process.poll()
        if status is None:
            return None
        return signal.Signals(-status).name if status < 0 else f"exit status {status}"

    def wait_for_answer(self) -> None:
        """Wait until it answers.

        Raises:
            RamplineError: when it ends, or has not answered after three minutes; with the last line of its log.
        """
        deadline = time.monotonic() + ANSWER_SECONDS
        while not self.answers():
            if ended := self.how_it_ended():
                raise RamplineError(f"{self.title} did not start ({ended}): {self.last_line()}; see {self.log}")
            if time.monotonic() > deadline:
                raise RamplineError(f"{self.title} did not answer within {ANSWER_SECONDS:.0f} s: see {self.log}")
            time.sleep(POLL_SECONDS)

    def last_line(self) -> str:
        """The last line that it printed."""
        with open(self.log, "rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
        return mask(lines[-1].strip()) if lines else "it printed nothing"

    def _end_rest(self) -> None:
        """MLflow's second process holds the port after a kill of the first; flow runs of a lost worker go on."""
        if self.process is not None and self.name != "worker":
            send_group(self.process.pid, signal.SIGKILL)
