"""Opening the MLflow store: the user's `MLFLOW_TRACKING_URI`, else sqlite and local artifacts in `RAMPLINE_HOME`."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Mapping
from typing import Any

from mlflow.entities import LifecycleStage, Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH
from sqlalchemy.exc import SQLAlchemyError

from rampline.credentials import mask
from rampline.errors import RamplineError
from rampline.files import sync_directory
from rampline.jobs.lock import locked
from rampline.record.home import Home, default_uri, tracking_uri

# What a store that is away, or refuses, raises; those of requests are OSErrors.
STORE_ERRORS = (MlflowException, SQLAlchemyError, OSError)
LOCAL_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql")


class TrackingError(RamplineError):
    """The tracking store cannot be opened or written to."""


def open_tracking(home: Home) -> MlflowClient:
    """A client of the tracking store, which is made first if it is the default one and does not exist.

    Raises:
        TrackingError: when the store cannot be reached, or is from another version of MLflow.
    """
    uri = tracking_uri(home)
    _quiet()
    try:
        # Of several processes that create the tables of a fresh sqlite database, all but one fail.
        with locked(home.root / ".mlflow.lock"):
            if uri == default_uri(home) and not home.tracking_database.exists():
                _make_database(home)
            return _connect(uri)
    except STORE_ERRORS as error:
        raise TrackingError(f"MLflow at {mask(uri)} cannot be used: {first_line(error)}") from error


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


def first_line(error: Exception) -> str:
    """The first line of an error's text, without secrets, for a message of one line."""
    return mask((str(error).strip().splitlines() or [type(error).__name__])[0])


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


def _quiet() -> None:
    """Leave out lines about tables that are created, and those about errors and retries: in the end one is raised."""
    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)


PARENT_TAG = "mlflow.parentRunId"


def log_figures(
    client: MlflowClient, run_id: str, figures: Mapping[str, float | None], *, timestamp_seconds: float | None = None
) -> None:
    """Log metrics that a run has once, such as `{"speedup": 1.8, "scaling_efficiency": 0.9}`, on a run in any state.

    A figure that is there already is left as it is, another value becomes the latest. None, NaN and infinity are left
    out. The time is now, unless they come from a file that has one.
    """
    current = client.get_run(run_id).data.metrics
    new = {name: value for name, value in figures.items() if name not in current or current[name] != value}
    metrics = make_metrics(new, step=0, timestamp_seconds=timestamp_seconds or time.time())
    if metrics:
        client.log_batch(run_id, metrics=metrics)


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, Any]) -> None:
    """Log the params that the run does not have yet; MLflow refuses to change one, so the first value stays."""
    current = client.get_run(run_id).data.params
    new = [Param(name, param_text(value)) for name, value in params.items() if name not in current]
    if new:
        client.log_batch(run_id, params=new)


def make_metrics(figures: Mapping[str, float | None], *, step: int, timestamp_seconds: float) -> list[Metric]:
    """MLflow metrics of the figures that are finite."""
    timestamp = int(timestamp_seconds * 1000)
    finite = {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}
    return [Metric(name, value, timestamp, step) for name, value in finite.items()]


def param_text(value: Any) -> str:
    """A configuration value as MLflow holds it: `str`, lists in brackets, without secrets, cut at MLflow's limit."""
    text = str(list(value)) if isinstance(value, tuple | list) else str(value)
    return mask(text)[:MAX_PARAM_VAL_LENGTH]
