"""Opening the MLflow store: the user's `MLFLOW_TRACKING_URI`, else sqlite and local artifacts in `RAMPLINE_HOME`."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from mlflow.entities import LifecycleStage, Run, ViewType
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH
from sqlalchemy.exc import SQLAlchemyError

from rampline.credentials import first_line, mask
from rampline.errors import RamplineError
from rampline.files import locked, sync_directory
from rampline.record.home import Home, default_uri, tracking_uri

# What a store that is away, or refuses, raises; those of requests are OSErrors.
STORE_ERRORS = (MlflowException, SQLAlchemyError, sqlite3.Error, OSError)
# Where MLflow's database keeps absolute places of artifacts.
PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
PAGE = 1000  # runs that are asked for at once
LOCAL_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql")

logger = logging.getLogger(__name__)


class TrackingError(RamplineError):
    """The tracking store cannot be opened or written to."""


@contextmanager
def tracking_errors(what: str) -> Iterator[None]:
    """What a store raises in the block becomes a `TrackingError`: what cannot be done, and why."""
    try:
        yield
    except STORE_ERRORS as error:
        raise TrackingError(f"{what}: {first_line(error)}") from error


def open_tracking(home: Home) -> MlflowClient:
    """A client of the tracking store, which is made first if it is the default one and does not exist.

    The default one of a home that was copied or moved is led to the artifacts beside it.

    Raises:
        TrackingError: when the store cannot be reached, or is from another version of MLflow.
    """
    uri = tracking_uri(home)
    _quiet()
    # Of several processes that create the tables of a fresh database, all but one fail. A server has made its own, and
    # who waits for one that does not answer must not hold up the others.
    lock = locked(home.root / ".mlflow.lock") if uri.startswith(LOCAL_SCHEMES) else nullcontext()
    with tracking_errors(f"MLflow at {mask(uri)} cannot be used"), lock:
        is_default = uri == default_uri(home)
        if is_default and not home.tracking_database.exists():
            _make_database(home)
        client = _connect(uri)
        if is_default:
            _lead_to_own_artifacts(home)
        return client


def experiment_id(client: MlflowClient, study: str, home: Home) -> str:
    """The experiment of a study, made if there is none; one that was deleted in MLflow is restored with its runs.

    Raises:
        TrackingError: when the store refuses.
    """
    try:
        return _find_experiment(client, study) or client.create_experiment(
            study, _artifact_location(client, study, home)
        )
    except MlflowException as error:
        # Another process may have made it between the two calls.
        found = _find_experiment(client, study)
        if found is None:
            raise TrackingError(f"MLflow experiment {study} cannot be created: {first_line(error)}") from error
        return found


def _connect(uri: str) -> MlflowClient:
    """A client that has been answered; a database gets its tables here."""
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    client.search_experiments(max_results=1)
    return client


def _make_database(home: Home) -> None:
    """Made aside and renamed: a process killed in between would leave tables that MLflow can neither use nor mend."""
    aside = home.tracking_database.with_name(f".{home.tracking_database.name}.{os.getpid()}")
    aside.unlink(missing_ok=True)
    _connect(f"sqlite:///{aside}")
    os.replace(aside, home.tracking_database)
    sync_directory(home.root)


def _lead_to_own_artifacts(home: Home) -> None:
    """What MLflow has below `mlartifacts` of another home is here, too, or nowhere else: its paths are absolute, and a
    copy would write into the home that it was copied from."""
    with closing(sqlite3.connect(home.tracking_database)) as database, database:
        for (place,) in database.execute("SELECT artifact_location FROM experiments").fetchall():
            if not str(place).startswith("file:///"):
                continue
            old = Path(unquote(place.removeprefix("file://")))
            new = home.artifacts / old.name
            if old.parent.name != home.artifacts.name or _is_same(old, new):
                continue
            # Of a database that was the MLFLOW_TRACKING_URI of another home.
            if os.path.isdir(old) and not new.is_dir():
                continue
            logger.warning("the artifacts of a home that was copied or moved: MLflow looks for %s in %s now", old, new)
            for table, column in PLACES:
                inside = f"substr({column} || '/', 1, length(:old) + 1) = :old || '/'"
                change = f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) WHERE {inside}"
                database.execute(change, {"old": place, "new": new.as_uri()})


def _is_same(old: Path, new: Path) -> bool:
    """Also by a link, and where a folder is mounted twice."""
    if os.path.exists(old) and new.exists():  # `Path.exists` raises where another user's folder may not be looked into
        return old.samefile(new)
    return os.path.realpath(old) == os.path.realpath(new)


def _find_experiment(client: MlflowClient, study: str) -> str | None:
    found = client.get_experiment_by_name(study)
    if found is None:
        return None
    if found.lifecycle_stage == LifecycleStage.DELETED:
        client.restore_experiment(found.experiment_id)
    return found.experiment_id


def _artifact_location(client: MlflowClient, study: str, home: Home) -> str | None:
    """A database has no artifacts of its own, so they go to `home`; a server decides for itself."""
    is_database = client.tracking_uri.startswith(LOCAL_SCHEMES)
    return (home.artifacts / study).as_uri() if is_database else None


def find_runs(
    client: MlflowClient, experiment_id: str, condition: str, order: str = "ASC", page_size: int = PAGE
) -> Iterator[Run]:
    """The runs of an experiment that meet a condition, by the time at which they were started; page by page."""
    token = None
    while True:
        page = client.search_runs(
            [experiment_id],
            condition,
            ViewType.ACTIVE_ONLY,
            max_results=page_size,
            order_by=[f"attributes.start_time {order}"],
            page_token=token,
        )
        yield from page
        token = page.token
        if not token:
            return


def create_run(client: MlflowClient, experiment_id: str, *, name: str, tags: Mapping[str, str], began: float) -> Run:
    """A new run, which `tags` tell apart from all others; `began` in Unix seconds.

    MLflow's client repeats a request whose answer it has not got: what a slow server has made of the first is deleted.
    """
    start = int(1000 * began)
    run = client.create_run(experiment_id, start_time=start, tags=dict(tags), run_name=name)
    for other in list(find_runs(client, experiment_id, f"attributes.start_time = {start}")):
        if other.info.run_id != run.info.run_id and tags.items() <= other.data.tags.items():
            client.delete_run(other.info.run_id)
    return run


def _quiet() -> None:
    """Leave out lines about tables that are created, and those about errors and retries: in the end one is raised."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


def param_text(value: Any) -> str:
    """A configuration value as MLflow holds it: `str`, lists in brackets, without secrets, cut at MLflow's limit."""
    text = str(list(value)) if isinstance(value, tuple | list) else str(value)
    return mask(text)[:MAX_PARAM_VAL_LENGTH]
