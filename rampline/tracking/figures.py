"""Single figures, params and tags of an MLflow run, written so that doing it again changes nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient
from mlflow.utils.validation import MAX_PARAM_VAL_LENGTH

from rampline.credentials import mask

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
