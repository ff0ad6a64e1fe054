"""Addresses of MLflow's pages, from `#` on: after the address of a server, or as links inside its descriptions.

`workflowType` opens them as pages of training; without it MLflow 3.17 shows menus for language models until somebody
has switched them.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from rampline.credentials import without_user
from rampline.record.home import Home, tracking_uri
from rampline.record.metric import Output
from rampline.record.metrics import shown_in

if TYPE_CHECKING:
    from rampline.comparison.runs import Comparison

TRAINING = {"workflowType": "machine_learning"}


def experiment_page(experiment_id: str, view: str = "", *, charts: bool = False) -> str:
    """The runs of an experiment, in one of its views (`rampline.tracking.pages`), as a table or as charts."""
    query = TRAINING | ({"viewStateShareKey": view} if view else {}) | ({"compareRunsMode": "CHART"} if charts else {})
    return f"#/experiments/{experiment_id}/runs?{urlencode(query)}"


def run_page(experiment_id: str, run_id: str) -> str:
    """A run's overview."""
    return f"#/experiments/{experiment_id}/runs/{run_id}?{urlencode(TRAINING)}"


def artifact_page(experiment_id: str, run_id: str, path: str) -> str:
    """A file of a run, such as `report.html`."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{quote(path)}?{urlencode(TRAINING)}"


def compare_page(experiment_id: str, run_ids: Sequence[str]) -> str:
    """Runs of an experiment side by side: all params, all metrics, and what differs."""
    query = {"runs": json.dumps(list(run_ids)), "experiments": json.dumps([experiment_id])}
    return f"#/compare-runs?{urlencode(query | TRAINING, quote_via=quote)}"


LATEST, ALL = "rampline-latest", "rampline-all"
NAMES = {LATEST: "Rampline: latest execution", ALL: "Rampline: all executions"}
VIEW_TAG = "mlflow.sharedViewState."
RUNS_ONLY = "tags.`rampline.kind` = 'run'"
# By time MLflow nests the runs below their study, and folds them up.
SORTED_BY = "metrics.`speedup`"

PARAMS = ("strategy", "replicas", "global_batch_size")
# Few enough for parallel coordinates to be read.
PARALLEL_PARAMS = ("replicas", "peak_learning_rate")
BY_TIME, BY_EPOCH, SUMMARY, OTHER = "By wall clock", "By epoch", "In the end", "Model metrics"
RUNS_SHOWN = 20


def renew_views(tags: Mapping[str, str], execution: str, now_seconds: float) -> dict[str, str]:
    """The tags, by name, to write on the experiment that has `tags`, so that its views are there and up to date.

    `execution` is the newest one of the study. A view that a person has changed in MLflow is left as it is.
    """
    filters = {LATEST: f"{RUNS_ONLY} and tags.`rampline.execution` = '{execution}'", ALL: RUNS_ONLY}
    renewed = {}
    for key, condition in filters.items():
        current = tags.get(f"{VIEW_TAG}{key}")
        created = _created_and_ours(current) if current else int(1000 * now_seconds)
        if created is not None and (value := _write_view(NAMES[key], condition, created)) != current:
            renewed[f"{VIEW_TAG}{key}"] = value
    return renewed


def _created_and_ours(value: str) -> int | None:
    """When the view was made, in ms; `None` if somebody has saved another state of the page in it."""
    try:
        envelope = json.loads(value)
        created, updated = envelope["createdAt"], envelope["updatedAt"]
    except (ValueError, TypeError, KeyError):
        return None
    return created if created == updated else None


def _write_view(name: str, condition: str, created_ms: int) -> str:
    """The tag's value; below the 5,000 characters that MLflow keeps of an experiment's tag."""
    state = {
        "searchFilter": condition,
        "orderByKey": SORTED_BY,
        "orderByAsc": False,
        "selectedColumns": _columns(),
        "runsHiddenMode": f"FIRST_{RUNS_SHOWN}_RUNS",
        "hideEmptyCharts": True,
        "isAccordionReordered": True,
        "compareRunSections": [
            {"uuid": name, "name": name, "display": True, "isReordered": True}
            for name in (SUMMARY, BY_TIME, BY_EPOCH, OTHER)
        ],
        "compareRunCharts": _charts(),
    }
    return _compact({"name": name, "createdAt": created_ms, "updatedAt": created_ms, "state": _compact(state)})


def _columns() -> list[str]:
    params = [f"params.`{name}`" for name in PARAMS]
    return [*params, *(f"metrics.`{name}`" for name in _shown_in(Output.VIEW_COLUMN)), "tags.`rampline.bound`"]


def _charts() -> list[dict[str, Any]]:
    return [
        *(_chart("BAR", SUMMARY, metric, {"metricKey": metric}) for metric in _shown_in(Output.VIEW_BAR)),
        _parallel(),
        *(_line(metric, BY_TIME, x="elapsed_seconds") for metric in _shown_in(Output.VIEW_BY_TIME)),
        *(_line(metric, BY_EPOCH) for metric in _shown_in(Output.VIEW_BY_EPOCH)),
    ]


def _shown_in(output: Output) -> list[str]:
    return [metric.name for metric in shown_in(output)]


def _chart(kind: str, section: str, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    fixed = {"type": kind, "uuid": f"{section}: {name}", "metricSectionId": section, "runsCountToCompare": RUNS_SHOWN}
    return {**fixed, "deleted": False, "isGenerated": False, **values}


def _line(metric: str, section: str, *, x: str = "") -> dict[str, Any]:
    axis = {"xAxisKey": "metric", "selectedXAxisMetricKey": x} if x else {"xAxisKey": "step"}
    chosen = {"metricKey": metric, "selectedMetricKeys": [metric], "yAxisKey": "metric", "yAxisExpressions": []}
    scales = {"scaleType": "linear", "xAxisScaleType": "linear", "range": {}, "lineSmoothness": 0}
    own = {"useGlobalXaxisKey": False, "useGlobalLineSmoothing": False}
    return _chart("LINE", section, metric, {**chosen, **axis, **scales, **own})


def _parallel() -> dict[str, Any]:
    metrics = _shown_in(Output.VIEW_PARALLEL)
    values = {"selectedParams": PARALLEL_PARAMS, "selectedMetrics": metrics, "showAllRuns": True}
    return _chart("PARALLEL", SUMMARY, "parallel", values)


def _compact(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))


LOCAL_SERVER = "http://127.0.0.1:5000"
# Where links lead, if people reach MLflow by another address than its clients, as `PREFECT_UI_URL` says of Prefect.
MLFLOW_UI_URL = "RAMPLINE_MLFLOW_UI_URL"


def mlflow_links(comparison: Comparison, home: Home) -> dict[str, str]:
    """Pages of MLflow by what they show: the runs as `charts`, the execution's run (`study`), its `report`.

    At `RAMPLINE_MLFLOW_UI_URL`, else on the tracking server, or on the one that `rampline up` starts.
    """
    run_id, experiment = comparison.parent_run_id, comparison.experiment_id
    pages = {
        "charts": experiment_page(experiment, LATEST, charts=True),
        "study": run_page(experiment, run_id),
        "report": artifact_page(experiment, run_id, "report.html"),
    }
    return {shown: f"{_server(home)}/{page}" for shown, page in pages.items()}


def model_version_link(model: str, version: int, home: Home) -> str:
    """The page of a version of a registered model, on the same server."""
    return f"{_server(home)}/#/models/{model}/versions/{version}?{urlencode(TRAINING)}"


def how_to_open_mlflow(home: Home) -> str:
    """Where a tracking server is running already, else the command that starts MLflow on the runs, and its address."""
    if _has_server(home):
        return _server(home)
    program = shlex.quote(shorten(Path(sys.executable).with_name("rampline")))
    return f"{program} up, then {LOCAL_SERVER}"


def how_to_open_tensorboard(folder: Path) -> str:
    """The one command that shows the scalars of a run and its profile, whose plugin is no part of this installation."""
    own = Path(sys.prefix).with_name(".tools") / "bin" / "uvx"  # of `make setup`
    program = shlex.quote(shorten(own)) if own.is_file() else "uvx"
    return f"{program} --with xprof tensorboard --logdir {shlex.quote(shorten(folder))}"


def shorten(path: Path) -> str:
    """Relative to the current folder where that is shorter."""
    return min(os.path.relpath(path), str(path), key=len)


def _server(home: Home) -> str:
    server = without_user(tracking_uri(home)) if _has_server(home) else LOCAL_SERVER
    return (os.environ.get(MLFLOW_UI_URL) or server).rstrip("/")


def _has_server(home: Home) -> bool:
    return tracking_uri(home).startswith("http")
