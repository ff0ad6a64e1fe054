"""What `rampline up` of a home has started, as its file `servers/state.json` says; never a secret.

Small on purpose: every `rampline run` asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rampline.files import JsonData
from rampline.record.home import Home

HEALTH_TIMEOUT_SECONDS = 5.0
# What `prefect.yaml` sends its flow runs to.
POOL = "rampline"


@dataclass(frozen=True, kw_only=True)
class ProcessState:
    """One process of `rampline up`, which leads its process group: its `process_identity`, and the path of its log."""

    pid: int
    identity: str
    log: str


@dataclass(frozen=True, kw_only=True)
class Servers(JsonData):
    """The servers of one home.

    Attributes:
        pid, identity: process id and `process_identity` of `rampline up`.
        ready: whether all had answered by the time this was written.
        prefect_api_url: what `PREFECT_API_URL` has to be, such as `http://127.0.0.1:4200/api`.
        mlflow_url: where MLflow is, and what `MLFLOW_TRACKING_URI` has to be.
        processes: by name (`prefect`, `mlflow`, `worker`); a server that was there before has none.
        with_secret: those of `prefect` and `mlflow` that the home's secret lets in.
    """

    pid: int
    identity: str
    ready: bool
    prefect_api_url: str
    mlflow_url: str
    processes: Mapping[str, ProcessState] = field(default_factory=dict)
    with_secret: tuple[str, ...] = ()

    @property
    def prefect_url(self) -> str:
        """Where Prefect's UI is."""
        return self.prefect_api_url.removesuffix("/api")

    @property
    def is_up(self) -> bool:
        """Whether `rampline up` still runs, and no other process has got its number since."""
        from rampline.record.provenance import process_runs  # brings in psutil

        return process_runs(self.identity)

    def client_environment(self) -> dict[str, str]:
        """The variables that lead Prefect's and MLflow's clients here, and log them in.

        Passwords come from this process's environment, under a client's names or those that `rampline up` was given.
        """
        found = {"PREFECT_API_URL": self.prefect_api_url, "MLFLOW_TRACKING_URI": self.mlflow_url}
        return found | client_credentials(os.environ)


def client_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """What clients call the passwords that `environment` gives the servers; what it calls so itself goes first."""
    names = {
        "PREFECT_API_AUTH_STRING": "PREFECT_SERVER_API_AUTH_STRING",
        "MLFLOW_TRACKING_USERNAME": "RAMPLINE_MLFLOW_USERNAME",
        "MLFLOW_TRACKING_PASSWORD": "RAMPLINE_MLFLOW_PASSWORD",
    }
    found = {client: environment.get(client) or environment.get(server, "") for client, server in names.items()}
    return {name: value for name, value in found.items() if value}


def servers_folder(home: Home) -> Path:
    """Where the state, the lock and the logs are."""
    return home.root / "servers"


def state_file(home: Home) -> Path:
    """Which servers there are: `Servers` as JSON."""
    return servers_folder(home) / "state.json"


def running_servers(home: Home) -> Servers | None:
    """The servers of `home` if its `rampline up` runs, has finished starting them, and both answer; else `None`.

    Without a state file this costs a look at the disk.
    """
    servers = read_state(home)
    if servers is None or not servers.ready or not servers.is_up:
        return None
    answer = answers(f"{servers.prefect_api_url}/health") and answers(f"{servers.mlflow_url}/health")
    return servers if answer else None


def read_state(home: Home) -> Servers | None:
    """What the state file says, whether or not it is still so; `None` without one that can be read."""
    try:
        return Servers.read(state_file(home))
    except (OSError, ValueError):
        return None


def answers(url: str) -> bool:
    """Whether an HTTP server is there; one that wants credentials, or has no such page, is."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=HEALTH_TIMEOUT_SECONDS):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False
