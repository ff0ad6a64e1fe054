"""What `rampline up` is going to start, and what it finds: all is checked before anything is started."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rampline.credentials import mask, without_user
from rampline.errors import InputError
from rampline.record.home import Home
from rampline.servers import addresses
from rampline.servers.environments import Access
from rampline.servers.running import answers

HTTP = ("http://", "https://")
PACKAGE = Path(__file__).parents[1]
# In a checkout the package has a link to it.
PREFECT_YAML = (PACKAGE / "prefect.yaml").resolve()


def prefect_yaml() -> dict[str, Any]:
    """What prefect.yaml holds."""
    return yaml.safe_load(PREFECT_YAML.read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asks for.

    Attributes:
        host: name or address to listen on.
        cpu_slots: runs at once on a machine without a GPU; `None` leaves it as it is.
        when_idle: command for the shell, run when nothing has trained for `idle_minutes`; empty for none.
    """

    home: Home
    host: str = "127.0.0.1"
    prefect_port: int = 4200
    mlflow_port: int = 5000
    cpu_slots: int | None = None
    when_idle: str = ""
    idle_minutes: float = 15.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is started where, and who may use it.

    Attributes:
        address: IP address to listen on.
        starts_prefect: else `PREFECT_API_URL` is used.
        starts_mlflow: else `MLFLOW_TRACKING_URI` is used.
        prefect_api_url: without credentials, as the next one.
        folder: where flow runs work.
    """

    request: Request
    address: str
    starts_prefect: bool
    starts_mlflow: bool
    prefect_api_url: str
    mlflow_url: str
    access: Access
    folder: Path

    @property
    def prefect_url(self) -> str:
        """Where Prefect's UI is."""
        return self.prefect_api_url.removesuffix("/api")

    @property
    def with_secret(self) -> tuple[str, ...]:
        """The servers that the home's secret lets in: those that are started, and were given no passwords."""
        prefect = self.starts_prefect and not self.access.prefect
        mlflow = self.starts_mlflow and not self.access.mlflow_password
        return ("prefect",) * prefect + ("mlflow",) * mlflow


def make_plan(request: Request) -> Plan:
    """What follows from the options and the environment.

    Raises:
        InputError: for a host that is none, and for passwords that are missing.
    """
    prefect, mlflow = os.environ.get("PREFECT_API_URL", ""), os.environ.get("MLFLOW_TRACKING_URI", "")
    starts_prefect, starts_mlflow = not prefect, not mlflow.startswith(HTTP)
    address = addresses.resolve(request.host)
    access = Access.from_environment(os.environ)
    if not addresses.is_loopback(address):
        access.check_for(request.host, starts_prefect=starts_prefect, starts_mlflow=starts_mlflow)
    if starts_prefect and starts_mlflow and request.prefect_port == request.mlflow_port:
        raise InputError(f"--prefect-port and --mlflow-port are both {request.prefect_port}: they must differ")
    if starts_prefect:
        prefect = f"{addresses.url(address, request.prefect_port)}/api"
    if starts_mlflow:
        mlflow = addresses.url(address, request.mlflow_port)
    return Plan(
        request=request,
        address=address,
        starts_prefect=starts_prefect,
        starts_mlflow=starts_mlflow,
        prefect_api_url=without_user(prefect).rstrip("/"),
        mlflow_url=without_user(mlflow).rstrip("/"),
        access=access,
        # Flow runs work in the checkout; those of an installed wheel in the current folder.
        folder=PACKAGE.parent if (PACKAGE.parent / PREFECT_YAML.name).is_file() else Path.cwd(),
    )


def check_servers(plan: Plan) -> None:
    """Check that there is room for what is started, and that the rest is there.

    Raises:
        InputError: for a port that is taken, and a server that is away.
    """
    if plan.starts_prefect:
        addresses.check_free(plan.address, plan.request.prefect_port, flag="--prefect-port")
    else:
        _check_there("PREFECT_API_URL", plan.prefect_api_url)
    if plan.starts_mlflow:
        addresses.check_free(plan.address, plan.request.mlflow_port, flag="--mlflow-port")
    else:
        _check_there("MLFLOW_TRACKING_URI", plan.mlflow_url)


def _check_there(variable: str, url: str) -> None:
    if not answers(f"{url}/health"):
        raise InputError(f"{variable}={mask(url)} does not answer: start that server, or unset {variable} to have one")
