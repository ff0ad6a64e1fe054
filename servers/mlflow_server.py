"""`python -m rampline.servers.mlflow_server ARGUMENT…`: `mlflow server ARGUMENT…` over a store that is ready.

The tables are made first, in the way of all other commands, and so is the administrator: it has the password that the
environment says, also where it had another before.
"""

from __future__ import annotations

import inspect
import os
import pkgutil
import sys
from functools import partial
from pathlib import Path

from rampline.credentials import mask
from rampline.errors import RamplineError
from rampline.record.home import Home
from rampline.servers.addresses import LISTENER
from rampline.servers.gate import Gate

APP = "RAMPLINE_MLFLOW_APP"


def main() -> None:
    """Take the place of the program."""
    arguments = sys.argv[1:]
    from mlflow.cli import cli

    from rampline.tracking.store import open_tracking

    # `open_tracking` reads it; for the server it would be the address of another server.
    os.environ["MLFLOW_TRACKING_URI"] = os.environ["MLFLOW_BACKEND_STORE_URI"]
    try:
        open_tracking(Home.from_environment())
    except RamplineError as error:
        sys.exit(mask(str(error)))
    del os.environ["MLFLOW_TRACKING_URI"]
    if os.environ.get("MLFLOW_AUTH_CONFIG_PATH"):
        _make_administrator(Path(os.environ["MLFLOW_AUTH_CONFIG_PATH"]))
        arguments += ["--app-name", "basic-auth"]
    _put_gate_before_app()
    cli(["server", *arguments], prog_name="mlflow")


def make_guarded_app() -> Gate:
    """MLflow's application behind the gate, for uvicorn."""
    app = pkgutil.resolve_name(os.environ[APP])
    return Gate.from_environment(app() if inspect.isfunction(app) else app)


def _put_gate_before_app() -> None:
    """MLflow serves one of its own applications, by its name; `make_guarded_app` is told which."""
    from mlflow import server

    command, fds = server._build_uvicorn_command, [os.environ[LISTENER]] if LISTENER in os.environ else []

    def guarded(options: str, host: str, port: int, workers: int, app: str, *_: object) -> list[str]:
        os.environ[APP] = app
        own = "rampline.servers.mlflow_server:make_guarded_app"
        return [*command(options, host, port, workers, own, is_factory=True), *(f"--fd={fd}" for fd in fds)]

    server._build_uvicorn_command = guarded
    names = server.__dict__
    names["_exec_cmd"] = partial(names["_exec_cmd"], pass_fds=[int(fd) for fd in fds])


def _make_administrator(config: Path) -> None:
    database = config.with_suffix(".db")
    lines = ["[mlflow]", "default_permission = READ", f"database_uri = sqlite:///{database}"]
    for file in (config, database):
        file.touch(mode=0o600)
        file.chmod(0o600)
    config.write_text("\n".join(lines) + "\n")
    # Reads its configuration when it is imported.
    from mlflow.server.auth.sqlalchemy_store import SqlAlchemyStore

    user, password = os.environ["MLFLOW_AUTH_ADMIN_USERNAME"], os.environ["MLFLOW_AUTH_ADMIN_PASSWORD"]
    store = SqlAlchemyStore()
    store.init_db(f"sqlite:///{database}")
    if not store.has_user(user):
        store.create_user(user, password, is_admin=True)
    elif not store.authenticate_user(user, password) or not store.get_user(user).is_admin:
        store.update_user(user, password=password, is_admin=True)


if __name__ == "__main__":
    main()
