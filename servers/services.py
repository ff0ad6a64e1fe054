"""The services of `rampline up`: which programs, with which environment, and how one sees that they work."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rampline.credentials import mask
from rampline.errors import RamplineError
from rampline.record.home import Home
from rampline.record.provenance import process_identity
from rampline.servers.addresses import LISTENER, host_elsewhere, is_loopback, listen
from rampline.servers.environments import client_environment, mlflow_environment, prefect_environment
from rampline.servers.processes import MODULE, created, send_group, start
from rampline.servers.running import POOL, ProcessState, answers, servers_folder
from rampline.servers.secret import open_prefect
from rampline.servers.server_plan import Plan
from rampline.tracking.pages import MLFLOW_UI_URL

ANSWER_SECONDS = 180.0
POLL_SECONDS = 0.2
TAIL_BYTES = 4096


@dataclass(kw_only=True)
class Service:
    """One of `prefect`, `mlflow` and `worker`.

    Attributes:
        title: how people are told of it.
        command: Python module that is run, and its arguments.
        environment: all of it.
        health: whether it answers; is given when the process was created, in seconds since 1970.
        listener: what it listens on, open also while it is away.
    """

    name: str
    title: str
    home: Home
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    health: Callable[[float], bool]
    listener: socket.socket | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    state: ProcessState | None = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """All that it prints, with every start."""
        return servers_folder(self.home) / f"{self.name}.log"

    def start(self) -> None:
        """Start it, again too; what is left of the last time is ended."""
        self._end_rest()
        command, environment, fds = ["-m", MODULE, str(os.getpid()), *self.command], {**self.environment}, list[int]()
        if self.listener is not None:
            fds = [self.listener.fileno()]
            environment[LISTENER] = str(fds[0])
        place = {"part": self.name, "home": self.home, "folder": self.folder, "log": self.log}
        self.process = start(command, **place, environment=environment, pass_fds=fds)
        self.state = ProcessState(pid=self.process.pid, identity=process_identity(self.process.pid), log=str(self.log))

    def answers(self) -> bool:
        """Whether it works."""
        return self.state is not None and self.health(created(self.state.pid))

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


def prefect_service(plan: Plan) -> Service:
    """The Prefect server with its UI."""
    environment = prefect_environment(plan.request.home, plan.address, plan.request.prefect_port, plan.access)
    return _server(plan, "prefect", "the Prefect server", plan.request.prefect_port, environment, plan.prefect_api_url)


def mlflow_service(plan: Plan) -> Service:
    """The MLflow server with its UI: two processes, the one that starts and the one that serves."""
    environment = mlflow_environment(plan.request.home, plan.address, plan.request.mlflow_port, plan.access)
    port = plan.request.mlflow_port
    return _server(plan, "mlflow", "the MLflow server", port, environment, plan.mlflow_url, "--workers", "1")


def _server(
    plan: Plan, name: str, title: str, port: int, environment: Mapping[str, str], url: str, *more: str
) -> Service:
    """The module `NAME_server` with `more` arguments; it answers at `url/health`."""
    home = plan.request.home
    return Service(
        name=name,
        title=title,
        home=home,
        command=(f"rampline.servers.{name}_server", "--host", plan.address, "--port", str(port), *more),
        environment=environment,
        folder=servers_folder(home),
        health=lambda _created: answers(f"{url}/health"),
        listener=listen(plan.address, port),
    )


def worker_service(plan: Plan) -> Service:
    """The worker that starts a process per flow run."""
    name = worker_name()
    return Service(
        name="worker",
        title="the worker",
        home=plan.request.home,
        command=("prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", name),
        environment=worker_environment(plan),
        folder=plan.folder,
        health=lambda created: _is_online(plan, name, since=created),
    )


def worker_environment(plan: Plan) -> dict[str, str]:
    """Of what talks to both servers."""
    # Prefect's own 10 s make a person who has clicked Run wonder.
    defaults = {"PREFECT_WORKER_QUERY_SECONDS": "3"}
    if plan.starts_mlflow and not is_loopback(plan.address):
        defaults[MLFLOW_UI_URL] = f"http://{host_elsewhere(plan.address)}:{plan.request.mlflow_port}"
    return defaults | client_environment(
        plan.request.home,
        plan.prefect_api_url,
        # With the credentials that the user may have written into it.
        plan.mlflow_url if plan.starts_mlflow else os.environ["MLFLOW_TRACKING_URI"],
        is_private=plan.starts_prefect,
    )


def worker_name() -> str:
    """One name per machine, so that the list of workers does not grow with every start."""
    return platform.node() or "worker"


def _is_online(plan: Plan, name: str, *, since: float) -> bool:
    """Whether the worker has reported since then, in seconds since 1970."""
    import httpx

    with suppress(httpx.HTTPError), open_prefect(plan.request.home, plan.prefect_api_url) as client:
        last = [worker.last_heartbeat_time for worker in client.read_workers_for_work_pool(POOL) if worker.name == name]
        return any(time.timestamp() >= since for time in last if time)
    return False
