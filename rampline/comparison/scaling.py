"""Figures derived from epochs and from other runs: best epoch, throughput, speed-up, scaling efficiency.

**Throughput** of a run is the median of its epochs' images/s without its first epoch, which holds the tracing of the
graph (a run of one epoch has only that one). Seconds per epoch are their median without the first, too.

**Speed-up** = throughput of the run / throughput of the reference: how much faster the same number of images is
trained on. A ratio of training times says the same only where both trained on equally many images, so
`train_seconds_vs_reference` (time of the run / time of the reference) is given for equal epochs on equal data alone,
those of the runs that it starts from included.

**Scaling efficiency** = speed-up / (replicas of the run / replicas of the reference): 1 is ideal linear scaling.

A run that went on elsewhere has the throughput of its epochs on the reference's machine; where it has none there, it
has no speed-up. The time ratio is given for runs that were on that machine alone.

Speed-up, efficiency and time ratio compare complete trainings: runs that did not finish have none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rampline.comparison.tracked import SAME_DATA
from rampline.record.metrics import Metric, Summary, find_metric, metrics_of_run

FINISHED = "FINISHED"
OF_STEADY = {Summary.MEDIAN: statistics.median, Summary.MIN: min, Summary.MAX: max}


def epoch_figures(epochs: pd.DataFrame, timed: pd.DataFrame | None = None) -> dict[str, Any]:
    """Best and last epoch, steady throughput with its range and steady seconds of one run's epochs (in order).

    Throughput and seconds are those of the epochs `timed`, all of them by default.
    """
    timed = epochs if timed is None else timed
    figures: dict[str, Any] = {"epochs": len(epochs)}
    for metric in metrics_of_run():
        summary = metric.summary
        if summary and summary in OF_STEADY:
            steady = _steady(timed, metric.of)
            figures |= {metric.name: OF_STEADY[summary](steady)} if steady else {}
        elif summary:
            points = list(epochs[["epoch", metric.of]].dropna().itertuples(index=False, name=None))
            figures |= {metric.name: _choose(metric, summary, points)} if points else {}
    return figures


def _choose(metric: Metric, summary: Summary, points: Sequence[tuple[int, float]]) -> float:
    """The figure from the epochs and their values; the first of equal ones is the best."""
    measured = find_metric(metric.of)
    choose = min if measured and measured.better == "lower" else max
    best_epoch, best = choose(points, key=lambda point: point[1])
    return {Summary.BEST: best, Summary.BEST_EPOCH: best_epoch, Summary.LAST: points[-1][1]}[summary]


def steady_throughput(epochs: pd.DataFrame) -> list[float]:
    """Images/s of one run's epochs without the first, unless there is no other."""
    return _steady(epochs, "images_per_second")


def _steady(epochs: pd.DataFrame, key: str) -> list[float]:
    values = epochs[key].tolist()
    steady = values[1:] if len(values) > 1 else values
    return [value for value in steady if math.isfinite(value)]


def choose_reference(runs: pd.DataFrame, declared: str) -> str:
    """The declared reference if it finished, else the first run that did, else none (an empty name)."""
    usable = runs.query("status == @FINISHED").dropna(subset=["images_per_second"])["run"].tolist()
    if declared in usable:
        return declared
    return usable[0] if usable else ""


def with_scaling(runs: pd.DataFrame, reference: str) -> pd.DataFrame:
    """`runs` with `speedup`, `scaling_efficiency` and `train_seconds_vs_reference` (NaN where they say nothing)."""
    runs = runs.copy()
    if not reference:
        return runs.assign(speedup=math.nan, scaling_efficiency=math.nan, train_seconds_vs_reference=math.nan)
    base = runs.set_index("run").loc[reference]
    finished = runs["status"] == FINISHED
    same_work = runs["epochs_in_all"] == base["epochs_in_all"]
    for key in ("fingerprint", *SAME_DATA):
        same_work &= runs[key] == base[key]
    replicas = runs["replicas"].astype("float64") / float(base["replicas"] or math.nan)
    runs["speedup"] = (runs["images_per_second"] / base["images_per_second"]).where(
        finished & (runs["machine"] == base["machine"])
    )
    same_work &= runs["machines"].map(lambda machines: {name for _, name in machines} == {base["machine"]})
    runs["scaling_efficiency"] = runs["speedup"] / replicas
    in_all = runs["train_seconds_in_all"].fillna(runs["train_seconds"])
    of_base = base["train_seconds"] if math.isnan(base["train_seconds_in_all"]) else base["train_seconds_in_all"]
    runs["train_seconds_vs_reference"] = (in_all / of_base).where(finished & same_work)
    return runs
