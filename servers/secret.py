"""The secret of a home's servers: who can read its file is let in by both, as the user `rampline`.

It is made once, so that what a browser remembers holds after a restart, and goes to processes by their environment:
other users can read arguments.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rampline.credentials import user_of, without_user
from rampline.files import write_text
from rampline.record.home import Home, private_mask
from rampline.servers.running import client_credentials, read_state, servers_folder

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

USER = "rampline"
# Tells a server `USER:SECRET`. Without it the server asks for passwords by itself, or for none.
LOGIN = "RAMPLINE_SERVER_LOGIN"
# A link with `USER:SECRET@` leads here, and on to the address without them: a page that has them in its address may ask
# for nothing else.
SIGN_IN = "/sign-in"
BYTES = 32


def secret_file(home: Home) -> Path:
    """Where it is; only its owner can read it, and in a home of a group the group (`keep_private`)."""
    return servers_folder(home) / "secret"


def make_login(home: Home) -> str:
    """`USER:SECRET`; the secret is made if there is none."""
    if not _read(home):
        write_text(secret_file(home), secrets.token_urlsafe(BYTES))
    return f"{USER}:{_read(home)}"


def client_login(home: Home, servers: Collection[str]) -> dict[str, str]:
    """The variables by which clients log in to those of `prefect` and `mlflow` that are in `servers`."""
    secret = _read(home)
    if not secret:
        return {}
    prefect = {"PREFECT_API_AUTH_STRING": f"{USER}:{secret}"}
    mlflow = {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": secret}
    return (prefect if "prefect" in servers else {}) | (mlflow if "mlflow" in servers else {})


def log_in(home: Home, environment: Mapping[str, str]) -> dict[str, str]:
    """The same for the servers of `home` that `environment` leads to; other servers are not told the secret."""
    servers = read_state(home)
    if servers is None:
        return {}
    led = {
        "prefect": ("PREFECT_API_URL", servers.prefect_api_url),
        "mlflow": ("MLFLOW_TRACKING_URI", servers.mlflow_url),
    }
    found = [
        name
        for name, (variable, url) in led.items()
        if name in servers.with_secret and _same(environment.get(variable, ""), url)
    ]
    # After a `kill -9` of all, somebody else may listen there.
    return client_login(home, found) if found and servers.is_up else {}


def take_login_out(environment: Mapping[str, str]) -> dict[str, str]:
    """`PREFECT_API_URL` without the `USER:PASSWORD@` that it holds, and these where all clients look for them.

    In the address some clients of Prefect do not use them, and others show them.
    """
    url = environment.get("PREFECT_API_URL", "")
    user, _, password = user_of(url).partition(":")
    return {"PREFECT_API_URL": without_user(url), "PREFECT_API_AUTH_STRING": f"{user}:{password}"} if user else {}


def open_prefect(home: Home, url: str, *, timeout_seconds: float = 15.0) -> SyncPrefectClient:
    """A client of the API at `url`, logged in with what the environment has, or with the home's secret."""
    # Takes a second: too slow for those who need none.
    from prefect.client.orchestration import SyncPrefectClient

    auth = client_credentials(os.environ | log_in(home, {"PREFECT_API_URL": url})).get("PREFECT_API_AUTH_STRING")
    key, settings = os.environ.get("PREFECT_API_KEY"), {"timeout": timeout_seconds}
    return SyncPrefectClient(url, auth_string=auth, api_key=key, httpx_settings=settings)


def sign_in_lines(home: Home, *, with_secret: bool) -> list[str]:
    """What opens the pages: a link per server that signs a browser in, or where the password is."""
    servers, secret = read_state(home), _read(home)
    # Once it has ended, somebody else may listen there, and would be told the secret.
    if servers is None or not servers.is_up or not servers.with_secret or not secret:
        return []
    if not with_secret:
        return [
            f"sign in    as {USER} with the password in {secret_file(home)}; `rampline status` in a terminal has links"
        ]
    pages = {"prefect": (servers.prefect_url, "/deployments"), "mlflow": (servers.mlflow_url, "/")}
    at = f"://{USER}:{secret}@"
    chosen = (pages[name] for name in servers.with_secret)
    return [f"sign in    {url.replace('://', at, 1)}{SIGN_IN}{page}" for url, page in chosen]


def tighten(home: Home) -> None:
    """Close to others what an earlier version left open: databases, secrets, run directories."""
    mask = private_mask(home)
    names = ("servers", "servers/secret", "prefect", "runs", "mlartifacts")
    for path in (home.root / name for name in (*names, "mlflow.db", "mlflow.db-wal", "mlflow.db-shm")):
        # Not those that are closed: of a home of a group they are another member's.
        with suppress(FileNotFoundError):
            if (mode := stat.S_IMODE(path.stat().st_mode)) & mask:
                path.chmod(mode & ~mask)


def _read(home: Home) -> str:
    """Empty where there is none, or it is not ours to read."""
    try:
        return secret_file(home).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _same(given: str, url: str) -> bool:
    return given.rstrip("/").replace("//localhost:", "//127.0.0.1:") == url
