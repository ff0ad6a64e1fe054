"""The environment of each process: settings as variables, because everybody can read arguments.

Of the command itself, which sets it before Prefect, TensorFlow or MLflow are imported, and of all that `rampline up`
starts.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rampline.errors import InputError
from rampline.record.home import Home, tracking_uri
from rampline.servers.addresses import (
    ALLOWED_HOSTS,
    LOCALHOST,
    OWN_HOSTS,
    given_hosts,
    host_elsewhere,
    is_loopback,
    own_names,
)
from rampline.servers.running import client_credentials, servers_folder
from rampline.servers.secret import LOGIN, make_login

PREFECT_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
MLFLOW_USER, MLFLOW_PASSWORD = "RAMPLINE_MLFLOW_USERNAME", "RAMPLINE_MLFLOW_PASSWORD"
# Set where a command has a Prefect server of its own: what that one leases ends with it.
OWN_PREFECT = "RAMPLINE_OWN_PREFECT"
# MLflow refuses shorter ones.
SHORTEST_PASSWORD = 12
# In MLflow's documentation and older versions, and so in every list of passwords to try.
KNOWN_PASSWORDS = ("password1234",)
# Flow and task logs stay in Prefect's database; in the terminal they would repeat the progress display.
QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    # After 2, 4 and 8 s: a server that is restarted is waited for, and one that is gone costs no minute per request.
    "PREFECT_CLIENT_MAX_RETRIES": "3",
    "DO_NOT_TRACK": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
# Set for the commands, where logs would be in the way; servers and flow runs write them to files.
FOR_COMMANDS_ONLY = (
    *("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "PREFECT_LOGGING_HANDLERS_DEBUG_LEVEL"),
    # A flow run waits a minute for a server that is started again.
    "PREFECT_CLIENT_MAX_RETRIES",
)


def make_quiet() -> None:
    """Keep the noise of the libraries, and their usage reports, away from the user, who may set it otherwise."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The passwords of the servers, `USER:PASSWORD` of Prefect; empty where a server has none."""

    prefect: str = field(default="", repr=False)
    mlflow_user: str = ""
    mlflow_password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        user, colon, password = self.prefect.partition(":")
        if self.prefect and not (user and colon and password):
            raise InputError(f'{PREFECT_AUTH} must be "USER:PASSWORD"')
        if bool(self.mlflow_user) != bool(self.mlflow_password):
            raise InputError(f"{MLFLOW_USER} and {MLFLOW_PASSWORD} must be set both, or neither")
        if self.mlflow_password and len(self.mlflow_password) < SHORTEST_PASSWORD:
            raise InputError(f"{MLFLOW_PASSWORD} must have at least {SHORTEST_PASSWORD} characters")
        if self.mlflow_password in KNOWN_PASSWORDS or password in KNOWN_PASSWORDS:
            raise InputError(f"{MLFLOW_PASSWORD} and {PREFECT_AUTH} must not hold a password that everybody knows")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Access:
        """What `PREFECT_SERVER_API_AUTH_STRING`, `RAMPLINE_MLFLOW_USERNAME` and `RAMPLINE_MLFLOW_PASSWORD` say."""
        return cls(
            prefect=environment.get(PREFECT_AUTH, ""),
            mlflow_user=environment.get(MLFLOW_USER, ""),
            mlflow_password=environment.get(MLFLOW_PASSWORD, ""),
        )

    def check_for(self, host: str, *, starts_prefect: bool, starts_mlflow: bool) -> None:
        """Refuse to be reachable from other machines without passwords.

        Raises:
            InputError: naming the variables to set.
        """
        missing = [f'{PREFECT_AUTH} ("USER:PASSWORD")'] * (starts_prefect and not self.prefect)
        missing += [f"{MLFLOW_USER} and {MLFLOW_PASSWORD}"] * (starts_mlflow and not self.mlflow_password)
        if missing:
            raise InputError(
                f"--host {host} lets other machines in, and whoever gets in can start trainings: "
                f"set {' and '.join(missing)} first, or stay with --host 127.0.0.1"
            )


def private_prefect(home: Home) -> dict[str, str]:
    """Settings of a Prefect server of our own: database, results and profiles live under `home`."""
    folder = os.environ.get("PREFECT_HOME") or str(home.root / "prefect")
    settings = {
        "PREFECT_HOME": folder,
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{folder}/prefect.db",
        "PREFECT_LOCAL_STORAGE_PATH": f"{folder}/storage",
    }
    return {name: os.environ.get(name) or value for name, value in settings.items()}


def prefect_environment(home: Home, address: str, port: int, access: Access) -> dict[str, str]:
    """Of the Prefect server: its database under `home`, slots that outlive it, a UI that other machines can use."""
    folder = private_prefect(home)["PREFECT_HOME"]
    Path(folder).mkdir(parents=True, exist_ok=True)
    defaults = {
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        # Where the browser has the page from, whatever it calls this machine.
        "PREFECT_SERVER_UI_API_URL": "/api",
    }
    if is_loopback(address):
        # Else any page in the user's browser may talk to a server without a password.
        origins = ",".join(f"http://{host}:{port}" for host in LOCALHOST)
        defaults["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = origins
    else:
        defaults["PREFECT_UI_URL"] = f"http://{host_elsewhere(address)}:{port}"  # where links in messages lead
    gate = _gate(home, address, asks_itself=bool(access.prefect))
    return defaults | _inherited("PREFECT_API_", MLFLOW_USER, MLFLOW_PASSWORD) | private_prefect(home) | gate


def mlflow_environment(home: Home, address: str, port: int, access: Access) -> dict[str, str]:
    """Of the MLflow server: the store of `home`, or of `MLFLOW_TRACKING_URI`; passwords, if there are any."""
    # Another name is a trick of a web page (DNS rebinding).
    hosts = list(dict.fromkeys([*LOCALHOST, *own_names(address), *given_hosts(os.environ.get(ALLOWED_HOSTS, ""))]))
    own = {
        "RAMPLINE_HOME": str(home.root),
        "MLFLOW_BACKEND_STORE_URI": _from_here(tracking_uri(home)),
        "MLFLOW_DEFAULT_ARTIFACT_ROOT": home.artifacts.as_uri(),
        "MLFLOW_ARTIFACTS_DESTINATION": home.artifacts.as_uri(),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # Otherwise every request is a line.
        "MLFLOW_UVICORN_OPTS": "--log-level warning",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(_patterns(hosts)),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(_origins(hosts, port)),
    }
    if access.mlflow_password:
        own |= {
            "MLFLOW_AUTH_CONFIG_PATH": str(servers_folder(home) / "mlflow-auth.ini"),
            "MLFLOW_AUTH_ADMIN_USERNAME": access.mlflow_user,
            "MLFLOW_AUTH_ADMIN_PASSWORD": access.mlflow_password,
            "MLFLOW_FLASK_SERVER_SECRET_KEY": secrets.token_hex(32),
        }
    gate = _gate(home, address, asks_itself=bool(access.mlflow_password))
    # The file of MLFLOW_AUTH_CONFIG_PATH may be that of another server of the user's.
    others = "MLFLOW_TRACKING_", "MLFLOW_AUTH_", "PREFECT_API_", MLFLOW_USER, MLFLOW_PASSWORD, PREFECT_AUTH
    return _inherited(*others) | own | gate


def client_environment(home: Home, prefect_api_url: str, mlflow_url: str, *, is_private: bool) -> dict[str, str]:
    """Of the worker and its flow runs, and of `prefect deploy`.

    `is_private`: whether the Prefect server is ours; then Prefect's folder is the one under `home`.
    """
    own = {"PREFECT_API_URL": prefect_api_url, "MLFLOW_TRACKING_URI": mlflow_url, "RAMPLINE_HOME": str(home.root)}
    # A flow run's lines go through a pipe to its worker. Without the worker the next line would end the flow run (rich
    # does that), so only errors go that way; all lines are in the UI.
    defaults = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "ERROR"}
    secrets_of_servers = (PREFECT_AUTH, MLFLOW_USER, MLFLOW_PASSWORD)
    private = private_prefect(home) if is_private else {}
    return defaults | _inherited(*secrets_of_servers) | private | client_credentials(os.environ) | own


def _inherited(*without: str) -> dict[str, str]:
    """This process's environment without what is for commands only, and names that begin with one of `without`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return {name: value for name, value in kept.items() if name not in FOR_COMMANDS_ONLY or QUIET[name] != value}


def _from_here(uri: str) -> str:
    """A relative path counts from where the command is; the server works in a folder of its own."""
    path = uri.removeprefix("sqlite:///")
    return uri if path == uri else f"sqlite:///{Path(path).absolute()}"


def _gate(home: Home, address: str, *, asks_itself: bool) -> dict[str, str]:
    """What the gate before a server lets in (`gate.py`); one that the user gave passwords asks for them by itself."""
    return {OWN_HOSTS: ",".join(own_names(address)), LOGIN: "" if asks_itself else make_login(home)}


def _patterns(hosts: list[str]) -> list[str]:
    """MLflow's patterns: with and without a port, of which a tunnel has another."""
    # A bracket opens a set of characters in a pattern.
    return [pattern for host in hosts for pattern in (host, f"{host.replace('[', '[[]', 1)}:*")]


def _origins(hosts: list[str], port: int) -> list[str]:
    """Pages that may change things: MLflow's own, behind a proxy too."""
    return [f"{scheme}://{host}{end}" for host in hosts for scheme in ("http", "https") for end in ("", f":{port}")]
