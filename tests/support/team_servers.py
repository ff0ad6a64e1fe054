"""The services of deployments/compose.yaml as plain processes on loopback, over a PostgreSQL of the test's own."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deployment_files import DEPLOYMENTS, compose, example_environment, without_secrets
from postgresql import PASSWORD, PASSWORDS, PostgreSql

from rampline.devices import free_ports
from rampline.jobs.waiting import wait_until

ROOT = DEPLOYMENTS.parent
# HEALTHCHECK of the Dockerfile.
IMAGE_HEALTH = ["python", "deployments/health.py"]
START_SECONDS = 240
STOP_SECONDS = 60
SECRETS = PASSWORDS | {
    "POSTGRES_PASSWORD": PASSWORD,
    "PREFECT_AUTH_STRING": "team:prefect0password",
    "MLFLOW_ADMIN_PASSWORD": "mlflow0password",
    "MLFLOW_SECRET_KEY": "signs0forms",
}


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service of compose.yaml: what its container would run, with the container's names led to this machine."""

    name: str
    command: list[str]
    environment: dict[str, str]
    health: list[str]
    log: Path

    def start(self) -> subprocess.Popen[bytes]:
        """Start it in a session of its own."""
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                self.command, env=self.environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )

    def is_healthy(self) -> bool:
        """What its health check says."""
        done = subprocess.run(self.health, env=self.environment, cwd=ROOT, capture_output=True, check=False)
        return done.returncode == 0

    def await_health(self) -> None:
        assert wait_until(self.is_healthy, START_SECONDS, every=0.5), self.log.read_text()


@dataclass(frozen=True, kw_only=True)
class Team:
    """A running team set-up.

    Attributes:
        prefect_url: of the API.
        mlflow_url: of the server.
        client: the variables that the worker's service has, which lead any command to both servers.
        home: the worker's RAMPLINE_HOME.
    """

    prefect_url: str
    mlflow_url: str
    client: dict[str, str]
    home: Path


@contextmanager
def start_team(postgresql: PostgreSql, folder: Path) -> Iterator[Team]:
    """All services of compose.yaml but the database, started in their order, each healthy before the next."""
    ports: dict[str, str] = dict(zip(("4200", "5000", "8080"), map(str, free_ports(3)), strict=True))
    content = compose(example_environment() | SECRETS)
    services = {name: _service(name, content, postgresql, ports, folder) for name in content["services"]}
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in ("prefect", "mlflow"):
            started.append(services[name].start())
        for name in ("prefect", "mlflow"):
            services[name].await_health()
        assert services["deploy"].start().wait(START_SECONDS) == 0, services["deploy"].log.read_text()
        worker = services["worker"]
        started.append(worker.start())
        worker.await_health()
        yield Team(
            prefect_url=f"http://127.0.0.1:{ports['4200']}/api",
            mlflow_url=f"http://127.0.0.1:{ports['5000']}",
            client=worker.environment,
            home=folder / "rampline",
        )
    finally:
        for process in reversed(started):
            _end(process)


def _service(
    name: str, content: Mapping[str, Any], postgresql: PostgreSql, ports: Mapping[str, str], folder: Path
) -> Service:
    service = content["services"][name]
    volumes: dict[str, str] = {"/rampline": name}
    for entry in service.get("volumes", ()):
        volume, path = entry.split(":")[:2]
        volumes[path] = volume
    here = {
        "postgres:5432": f"127.0.0.1:{postgresql.port}",
        "prefect:4200": f"127.0.0.1:{ports['4200']}",
        "mlflow:5000": f"127.0.0.1:{ports['5000']}",
        "0.0.0.0": "127.0.0.1",
        **ports,
        "/opt/rampline": str(ROOT),
        "/rampline": str(folder / volumes["/rampline"]),
        **{entry["target"]: str(folder / entry["source"]) for entry in service.get("configs", ())},
    }
    (folder / volumes["/rampline"]).mkdir(exist_ok=True)
    names = re.compile("|".join(map(re.escape, here)))

    def local(text: Any) -> str:
        return names.sub(lambda found: here[found[0]], str(text))

    for entry in service.get("configs", ()):
        (folder / entry["source"]).write_text(local(content["configs"][entry["source"]]["content"]))
    image = {"RAMPLINE_HOME": local("/rampline"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    own = {variable: local(value) for variable, value in service.get("environment", {}).items()}
    return Service(
        name=name,
        command=[local(part) for part in [*service.get("entrypoint", ()), *service.get("command", ())]],
        environment=without_secrets() | image | own,
        health=service["healthcheck"]["test"][1:] if "healthcheck" in service else IMAGE_HEALTH,
        log=folder / f"{name}.log",
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
