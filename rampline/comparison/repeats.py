"""Runs from trainings: a run that was trained several times is one row of medians, each with its `interval_of_median`.

Trainings of two runs with the same settings but for the seed are repeats of one another: their figures share an
interval, and what differs between them by chance is told as such.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rampline.record.metric import Metric, Source, interval_of_median
from rampline.record.metrics import from_source, metrics_of_run
from rampline.record.units import ACCURACY, COUNT, NUMBER

# With fewer trainings each, two equal runs part by chance too often (3 and 3: one time in ten; 4 and 4: in 35): their
# figures must differ by 5 % as well.
FEW, CLEAR = 4, 1.05

Interval = tuple[float, float]
Row = dict[str, Any]


def name_of_run(training: Mapping[str, Any]) -> str:
    """The run that a training belongs to."""
    return training["repeat_of"] or training["run"]


def merge_trainings(trainings: Iterable[Row]) -> list[Row]:
    """A row per run, in the order of the first trainings.

    Figures are medians of the finished trainings, those of time and money of the ones on the first one's machine; what
    is no single figure (names, texts, and the parts of a step, which add up) is that of the training in the middle, by
    throughput. Epochs are the lower median; the best epoch is missing where trainings differ in it.

    Columns beside those of `trainings`:
        answers_of: the MLflow run of the finished training whose accuracy is nearest to the median: its answers stand
            for those of the run.
        trained: how many trainings have finished.
        trainings: how many there are.
        intervals: (low, high) by metric, of those with two figures or more.
    """
    of_run = by_run(trainings)
    alike: dict[str, list[Row]] = {}
    for run in of_run.values():
        alike.setdefault(_equal(run), []).extend(filter(_is_finished, run))
    names = {row["run"]: name for name, run in of_run.items() for row in run}
    return [
        _merge(run, alike[_equal(run)]) | {"run": name, "starts_from": names.get(run[0]["starts_from"], "")}
        for name, run in of_run.items()
    ]


LOW, HIGH = "_low", "_high"
# The best validation accuracy so far.
REACHED = "reached_val_accuracy"


def merge_epochs(epochs: pd.DataFrame, trainings: Iterable[Row]) -> pd.DataFrame:
    """A row per run and epoch: medians of the trainings of its figures; of speeds and times, of those on its machine.

    A run ends with the first of its trainings that does: later medians would be those of the others alone, which a stop
    by accuracy or patience does not leave by chance.
    `REACHED` is a figure too: what each training has reached by then, not the best of the medians.
    Where a run was trained more than once, `METRIC_low` and `METRIC_high` are the least and the greatest of them.
    """
    finished = {name: _finished(run) for name, run in by_run(trainings).items()}
    counted = {row["run"]: name for name, run in finished.items() for row in run}
    elsewhere = [row["run"] for run in finished.values() for row in run if row["machine"] != run[0]["machine"]]
    kept = pd.DataFrame(epochs[epochs["run"].isin(counted)], copy=True)
    kept[REACHED] = kept.groupby("run")["val_accuracy"].cummax()
    timed = [metric.name for metric in from_source(Source.EPOCH) if metric.name in kept and _is_timed(metric)]
    kept.loc[kept["run"].isin(elsewhere), timed] = math.nan
    last: Any = kept.groupby("run")["epoch"].max()
    ends = last.groupby(counted).min()
    named = kept.assign(run=[counted[run] for run in kept["run"]])
    named = pd.DataFrame(named[named["epoch"] <= named["run"].map(ends)])
    names = ["run", "epoch"]
    if not named.duplicated(names).any():
        return named.reset_index(drop=True)
    grouped = named.groupby(names, sort=False, as_index=False)
    bounds = [grouped.agg(end).drop(columns=names).add_suffix(suffix) for end, suffix in (("min", LOW), ("max", HIGH))]
    return pd.concat([grouped.median(), *bounds], axis="columns")


def by_run(trainings: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each run's trainings, by its name."""
    of_run: dict[str, list[Row]] = {}
    for row in trainings:
        of_run.setdefault(name_of_run(row), []).append(row)
    return of_run


def _merge(trainings: Sequence[Row], alike: Sequence[Row]) -> Row:
    finished = _finished(trainings)
    timed, timed_alike = (
        [row for row in rows if row["machine"] == finished[0]["machine"]] for rows in (finished, alike)
    )
    by_speed = sorted(timed, key=lambda row: (pd.isna(row["images_per_second"]), row["images_per_second"]))
    middle = by_speed[(len(by_speed) - 1) // 2]
    figures = _figures(middle)
    medians = {m.name: _median(row[m.name] for row in (timed if _is_timed(m) else finished)) for m in figures}
    intervals = {m.name: _interval(m.name, timed_alike if _is_timed(m) else alike, medians[m.name]) for m in figures}
    answers, in_all, best = ([row[key] for row in finished] for key in ("answers", "epochs_in_all", "best_epoch"))
    accuracy = medians["test_accuracy"]
    return middle | {
        **medians,
        # The same models came out where the answers of all seeds are the same.
        "answers": " ".join(sorted({*answers})) if all(answers) else "",
        "answers_of": min(finished, key=lambda row: _distance(row["test_accuracy"], accuracy))["run_id"],
        # That of the middle has its seed.
        "set_up": finished[0]["set_up"],
        "epochs": statistics.median_low(row["epochs"] for row in finished),
        "epochs_in_all": in_all[0] if len({*in_all}) == 1 else math.nan,
        "best_epoch": best[0] if len({*best}) == 1 else math.nan,
        "stopped": next((row["stopped"] for row in finished if row["stopped"]), ""),
        "machines": max((row["machines"] for row in timed), key=len),
        "first_epochs": tuple(sorted({epoch for row in finished for epoch in row["first_epochs"]})),
        "repeat_of": "",
        "trained": sum(_is_finished(row) for row in trainings),
        "trainings": len(trainings),
        "intervals": {metric: interval for metric, interval in intervals.items() if interval and _is_finished(middle)},
    }


def _figures(row: Row) -> list[Metric]:
    """Those of which a median says something by itself."""
    whole = (Source.EXPLANATION, Source.PARITY)
    return [m for m in metrics_of_run(row) if m.source not in whole and m.unit is not COUNT]


def _is_timed(metric: Metric) -> bool:
    return metric.unit not in (ACCURACY, NUMBER)


def _equal(trainings: Sequence[Row]) -> str:
    """What is the same of runs that differ by the seed alone."""
    training = _finished(trainings)[0]
    settings = [line for line in training["set_up"].splitlines() if not line.startswith("seed=")]
    # Without its settings nothing is known to be equal. Of equal ones, some may have been stopped earlier than others.
    what = [training["machine"], training["fingerprint"], str(training["epochs"])]
    return "\n".join([*what, *(settings or [training["run"]])])


def _is_finished(training: Row) -> bool:
    return training["status"] == "FINISHED"


def _finished(trainings: Sequence[Row]) -> list[Row]:
    """Those that have finished; all, where none has."""
    return [row for row in trainings if _is_finished(row)] or list(trainings)


def _median(values: Iterable[float]) -> float:
    there = [value for value in values if not pd.isna(value)]
    return statistics.median(there) if there else math.nan


def _distance(value: float, median: float) -> float:
    return math.inf if pd.isna(value) else abs(value - median)


def _interval(metric: str, trainings: Sequence[Row], median: float) -> Interval | None:
    # The same figure of the same seed is one computation told twice.
    values = {(row["set_up"], row[metric]) for row in trainings if not pd.isna(row[metric])}
    if len(values) < 2:
        return None
    low, high = interval_of_median(value for _, value in values)
    # That of many runs which differ in the seed alone is narrower than they lie apart.
    return min(low, median), max(high, median)


def with_intervals_of_speedup(rows: list[Row], reference: str) -> list[Row]:
    """`rows` with the intervals of speed-up and efficiency: as far apart as both throughputs may be."""
    base = next((row for row in rows if row["run"] == reference), None)
    return [row | {"intervals": _with_speedup(row, base)} for row in rows] if base else rows


def _with_speedup(row: Row, base: Row) -> dict[str, Interval]:
    intervals, key = dict(row["intervals"]), "images_per_second"
    if row["run"] == base["run"] or pd.isna(row["speedup"]) or key not in {*intervals, *base["intervals"]}:
        return intervals
    own, other = figure_of(row, key), figure_of(base, key)
    speedup = own.low / other.high, own.high / other.low
    intervals["speedup"] = speedup
    if not pd.isna(row["scaling_efficiency"]):
        share = row["scaling_efficiency"] / row["speedup"]
        intervals["scaling_efficiency"] = (speedup[0] * share, speedup[1] * share)
    return intervals


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A median of a run's trainings with its interval, which is the figure alone where it was measured once."""

    value: float
    low: float
    high: float
    trained: int

    def __add__(self, other: Figure) -> Figure:
        return Figure(
            value=self.value + other.value,
            low=self.low + other.low,
            high=self.high + other.high,
            trained=min(self.trained, other.trained),
        )

    def is_clearly_above(self, other: Figure) -> bool:
        """Whether it is above that of another run by more than chance explains.

        The intervals must part; where one of the runs has few trainings, the figures must differ by 5 % as well.
        """
        is_few = min(self.trained, other.trained) < FEW
        return self.low > other.high and (not is_few or self.value >= CLEAR * other.value)

    def write(self, write: Callable[[float], str]) -> str:
        """`1.90 (1.81 to 1.97)`, each number as `write` has it."""
        bounds = [write(self.low), write(self.high)]
        return write(self.value) + (f" ({' to '.join(bounds)})" if len({*bounds}) > 1 else "")


def figure_of(row: Mapping[str, Any], metric: str) -> Figure:
    """A figure of a row of `merge_trainings`; one that is missing is NaN."""
    value = math.nan if pd.isna(row[metric]) else float(row[metric])
    low, high = row["intervals"].get(metric, (value, value))
    return Figure(value=value, low=low, high=high, trained=row["trained"])
