"""Who may use the servers: passwords from the environment, demanded beyond loopback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from rampline.errors import InputError
from rampline.record.home import Home
from rampline.servers.prefect_api import PrefectApi
from rampline.servers.running import client_credentials
from rampline.servers.secret import log_in

PREFECT_AUTH = "PREFECT_SERVER_API_AUTH_STRING"
MLFLOW_USER, MLFLOW_PASSWORD = "RAMPLINE_MLFLOW_USERNAME", "RAMPLINE_MLFLOW_PASSWORD"
# MLflow refuses shorter ones.
SHORTEST_PASSWORD = 12
# In MLflow's documentation and older versions, and so in every list of passwords to try.
KNOWN_PASSWORDS = ("password1234",)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The passwords of the servers; empty where a server has none.

    Attributes:
        prefect: `USER:PASSWORD`.
        mlflow_user: MLflow's administrator.
        mlflow_password: of at least 12 characters.
    """

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


def open_api(home: Home, url: str, *, timeout_seconds: float = PrefectApi.timeout_seconds) -> PrefectApi:
    """The Prefect server whose API is at `url`, logged in with what the environment has, or with the home's secret."""
    auth = client_credentials(os.environ | log_in(home, {"PREFECT_API_URL": url})).get("PREFECT_API_AUTH_STRING", "")
    return PrefectApi(url=url, auth=auth, key=os.environ.get("PREFECT_API_KEY", ""), timeout_seconds=timeout_seconds)
