"""What the roles of each run used of their machines, from the system metrics that MLflow holds."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Metric, Run

from rampline.comparison.tracked import run_name
from rampline.tracking.histories import Histories, read_histories
from rampline.tracking.run_artifacts import GPU_TAG

# Column by what `rampline.tracking.run_artifacts` logs, and how its samples become one figure.
ROLE_FIGURES = {
    "process_cpu_utilization_percentage": ("cpu_percent_mean", statistics.fmean),
    "process_memory_usage_megabytes": ("memory_megabytes_peak", max),
}
GPU_FIGURES = {
    "utilization_percentage": ("utilization_percent_mean", statistics.fmean),
    "memory_access_percentage": ("memory_access_percent_mean", statistics.fmean),
    "memory_usage_megabytes": ("memory_megabytes_peak", max),
    "memory_usage_percentage": ("memory_percent_peak", max),
    "power_usage_watts": ("power_watts_mean", statistics.fmean),
}
NUMBERS = tuple(dict.fromkeys(column for column, _ in (*ROLE_FIGURES.values(), *GPU_FIGURES.values())))
COLUMNS = ("run", "role", "gpu", "gpu_name", *NUMBERS)
METRIC = re.compile(r"system/(?P<role>[^/]+)/(?:gpu_(?P<gpu>\d+)_)?(?P<name>.+)")

Summary = Callable[[Iterable[float]], float]


def read_system(client: MlflowClient, children: list[Run], epochs: Histories) -> pd.DataFrame:
    """System figures of the runs of an execution: one row per run and role, then one per GPU of that role.

    `epochs` has the histories of `elapsed_seconds`, see `read_histories`.

    Means are those of the samples that were taken while the run trained (all of them, where MLflow does not tell when
    that was); peaks are those of the whole life of the role.

    Columns:
        run, role: names, such as `mirrored` and `chief-0`.
        gpu: number of the GPU in its role; NA in the row of the role itself.
        gpu_name: its model; empty when unknown.
        cpu_percent_mean: of the role's process, 100 per busy core; NaN in rows of GPUs.
        memory_megabytes_peak: resident set of the role, or used memory of the GPU; 10^6 bytes.
        utilization_percent_mean, memory_access_percent_mean: share of the time, in [0, 100], in which a kernel ran on
            the GPU, and in which its memory was read or written; NaN in rows of roles.
        memory_percent_peak: used memory of the GPU, in [0, 100] of all it has.
        power_watts_mean: of the whole GPU.
    """
    keys = {key for child in children for key in child.data.metrics if _summary_of(key)}
    samples = read_histories(client, children, sorted(keys))
    rows = [row for child in children for row in _rows(child, samples, epochs)]
    return _table(rows)


def no_system() -> pd.DataFrame:
    """The table of `read_system` without rows."""
    return _table([])


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    return table.astype({"gpu": "Int64", **dict.fromkeys(NUMBERS, "float64")})


def _summary_of(key: str) -> tuple[str, Summary] | None:
    """The column of a metric, and how its samples become one figure; None for one that is not shown."""
    match = METRIC.fullmatch(key)
    return match and (GPU_FIGURES if match["gpu"] else ROLE_FIGURES).get(match["name"])


def _rows(run: Run, samples: Histories, epochs: Histories) -> list[dict[str, Any]]:
    training = _training_time(epochs.get((run.info.run_id, "elapsed_seconds"), []))
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for key in sorted(run.data.metrics):
        match, found = METRIC.fullmatch(key), _summary_of(key)
        if match is None or found is None:
            continue
        role, gpu = match["role"], match["gpu"]
        column, summarise = found
        row = rows.setdefault((role, int(gpu or -1)), _row(run, role, gpu))
        row[column] = _summarise(samples[run.info.run_id, key], summarise, training)
    return [row for _, row in sorted(rows.items(), key=lambda item: _place(*item[0]))]


def _place(role: str, gpu: int) -> tuple[str, int, int]:
    name, _, index = role.rpartition("-")
    return name, int(index) if index.isdecimal() else 0, gpu


def _row(run: Run, role: str, gpu: str | None) -> dict[str, Any]:
    name = run.data.tags.get(f"{GPU_TAG}{role}.{gpu}", "")
    return {"run": run_name(run), "role": role, "gpu": None if gpu is None else int(gpu), "gpu_name": name}


def _summarise(samples: list[Metric], summarise: Summary, training: tuple[int, int] | None) -> float:
    if summarise is not max and training:
        inside = [sample for sample in samples if training[0] <= sample.timestamp <= training[1]]
        samples = inside or samples
    return summarise(sample.value for sample in samples)


def _training_time(epochs: list[Metric]) -> tuple[int, int] | None:
    """When training began and its last epoch ended, in milliseconds since 1970: starting TensorFlow is left out.

    `epochs` are the points of `elapsed_seconds`.
    """
    if not epochs:
        return None
    begin = min(epoch.timestamp - int(1000 * epoch.value) for epoch in epochs)
    return begin, max(epoch.timestamp for epoch in epochs)
