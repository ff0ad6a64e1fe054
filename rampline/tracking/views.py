"""Views in which MLflow opens the runs of a study for comparison: filter, order, columns and charts.

MLflow keeps what a person saves under "Views" of a runs page as a tag of the experiment: an envelope with a name, times
and the state of the page as JSON (`mlflow.sharedViewState.KEY`, seen with 3.17). Its web client takes the keys of the
state that it knows; where it can make nothing of a view, it says so and shows the runs as ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rampline.metrics import Output, shown_in

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
    """The tags to write on the experiment so that its views are there and up to date.

    Args:
        tags: what the experiment has.
        execution: the newest one of the study.
        now_seconds: Unix time.

    Returns:
        values by name; nothing for a view that a person has changed in MLflow.
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
        "compareRunSections": [_section(name) for name in (SUMMARY, BY_TIME, BY_EPOCH, OTHER)],
        "compareRunCharts": _charts(),
    }
    return _compact({"name": name, "createdAt": created_ms, "updatedAt": created_ms, "state": _compact(state)})


def _columns() -> list[str]:
    params = [f"params.`{name}`" for name in PARAMS]
    return [*params, *(f"metrics.`{name}`" for name in _shown_in(Output.VIEW_COLUMN)), "tags.`rampline.bound`"]


def _charts() -> list[dict[str, Any]]:
    return [
        *(_bar(metric) for metric in _shown_in(Output.VIEW_BAR)),
        _parallel(),
        *(_line(metric, BY_TIME, x="elapsed_seconds") for metric in _shown_in(Output.VIEW_BY_TIME)),
        *(_line(metric, BY_EPOCH) for metric in _shown_in(Output.VIEW_BY_EPOCH)),
    ]


def _shown_in(output: Output) -> list[str]:
    return [metric.name for metric in shown_in(output)]


def _section(name: str) -> dict[str, Any]:
    return {"uuid": name, "name": name, "display": True, "isReordered": True}


def _chart(kind: str, section: str, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    fixed = {"type": kind, "uuid": f"{section}: {name}", "metricSectionId": section, "runsCountToCompare": RUNS_SHOWN}
    return {**fixed, "deleted": False, "isGenerated": False, **values}


def _bar(metric: str) -> dict[str, Any]:
    return _chart("BAR", SUMMARY, metric, {"metricKey": metric})


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
