"""The runs of one execution of a study, side by side, read from MLflow, and the figures that are derived from them.

What the figures are, the report tells under *Method*. Where a run has no epoch beside the first of each attempt, only
its own first one is left out of its throughput, and a run of one epoch has that one. For a time ratio the epochs of the
runs that a run starts from count, too.

A run that went on elsewhere has the throughput of its epochs on the reference's machine; where it has none there, it
has no speed-up. The time ratio is given for runs that were on that machine alone.

Speed-up, efficiency and time ratio compare complete trainings: runs that did not finish have none.

A run that was trained several times has medians, see `rampline.comparison.repeats`.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run

from rampline.comparison.history import Trend, read_trends
from rampline.comparison.mlflow_reader import (
    COMPARABLE,
    COUNTS,
    SAME_DATA,
    Histories,
    environment_of,
    epoch_rows,
    find_ancestors,
    find_execution,
    own_figures,
    read_answers,
    read_children,
    read_histories,
    read_system,
    run_row,
)
from rampline.comparison.repeats import by_run, merge_epochs, merge_trainings, name_of_run, with_intervals_of_speedup
from rampline.credentials import mask
from rampline.errors import InputError
from rampline.record.events import without_tracing
from rampline.record.metric import Metric, Source, Summary
from rampline.record.metrics import compared_epochs, find_metric, logged, metrics_of_run, own_metrics
from rampline.record.units import COUNT, NONE, SECONDS
from rampline.registry.candidate import Predictions

# What `comparison.csv` says of a run before its metrics.
IDENTITY = (
    *("run", "run_id", "strategy", "engine", "replicas", "per_replica_batch_size", "global_batch_size"),
    *("status", "failure", "stopped", "test_split"),
)
# Columns of `runs` beside those: what tells whether and how two runs may be compared.
SETTINGS = (
    *("virtual_devices", "attempts", "workers_of_attempts", "attempt_table", "fingerprint", "steps_per_epoch"),
    *("steps_per_call", "batch.accumulate", "run_dir", "model.weights", "repeat_of", "parity"),
    *("answers", "set_up", "epochs_in_all", "seconds_before", "machine", "machines", "first_epochs"),
    *COMPARABLE,
)
FINISHED = "FINISHED"
OF_STEADY = {Summary.MEDIAN: statistics.median, Summary.MIN: min, Summary.MAX: max}


NOT_MEASURED_TAG = "rampline.not_measured"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The runs of one execution, side by side.

    Attributes:
        reference: the run that speed-up is measured against; empty when no run has finished.
        declared_reference: the run that the study names as its reference.
        command: what repeats it; empty when unknown.
        deadline_hours: what a training may take from start to end; None where the study names none.
        accuracy_tolerance: how far below the best accuracy a recommended set-up may be, as a share: 0.01 is one point.
        published_source: where the published figures are from; empty when not given.
        runs: one row per run, in the order they were started; columns as `csv_columns`, then `published_METRIC`,
            `SETTINGS` and those of `merge_trainings`. `rampline.explain` tells what it measures.
        trainings: one row per training, with the columns of `runs` but the last; as many as `runs` where nothing was
            repeated.
        answers: what the most accurate runs answered on each test image, by run.
        epochs: one row per run and epoch: run, epoch and the metrics `compared_epochs`.
        environment: one row per run, one column per item (git commit, seed, versions, …), as text.
        system: what GPUs, CPU and memory did; `read_system` tells the keys; empty where it was not read.
        not_measured: what is expected of set-ups that were not run, a sentence each.
        trends: of the runs over the executions before; empty where they were not read, and for the first execution.
    """

    study: str
    execution: str
    parent_run_id: str
    experiment_id: str
    reference: str
    declared_reference: str
    started: datetime
    command: str
    deadline_hours: float | None
    accuracy_tolerance: float
    published_source: str
    runs: pd.DataFrame
    trainings: pd.DataFrame
    answers: Mapping[str, Predictions]
    epochs: pd.DataFrame
    environment: pd.DataFrame
    system: list[dict[str, Any]]
    not_measured: tuple[str, ...]
    trends: tuple[Trend, ...]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """`runs` as one mapping per run."""
        return _rows_of(self.runs)

    @cached_property
    def finished(self) -> list[dict[str, Any]]:
        """The rows whose training ended well."""
        return [row for row in self.rows if row["status"] == FINISHED]

    def ranked(self, key: str) -> list[dict[str, Any]]:
        """The finished rows that have this figure, the highest first."""
        rows = [row for row in self.finished if not is_missing(row[key])]
        return sorted(rows, key=lambda row: row[key], reverse=True)

    @cached_property
    def reference_row(self) -> dict[str, Any] | None:
        """The row of the reference; None where no run has finished."""
        return next((row for row in self.finished if row["run"] == self.reference), None)

    @cached_property
    def _by_name(self) -> dict[str, dict[str, Any]]:
        return {row["run"]: row for row in self.rows}

    def ancestors_of(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows of the runs whose weights a run starts from, directly or not, the latest first."""
        found: list[dict[str, Any]] = []
        while row["starts_from"] in self._by_name:
            row = self._by_name[row["starts_from"]]
            found.append(row)
        return found

    def is_timed_alike(self, row: Mapping[str, Any]) -> bool:
        """Whether a run, and those that it starts from, were trained on the reference's machine alone."""
        reference = self.reference_row or row
        needed = [row, *self.ancestors_of(row)]
        return {name for each in needed for _, name in each["machines"]} == {reference["machine"]}

    @cached_property
    def trainings_of(self) -> dict[str, list[dict[str, Any]]]:
        """The rows of `trainings` by run."""
        return by_run(_rows_of(self.trainings))

    def accuracies_of(self, run: str) -> list[float]:
        """Test accuracies of the finished trainings of a run."""
        finished = (row for row in self.trainings_of[run] if row["status"] == FINISHED)
        return [float(row["test_accuracy"]) for row in finished if not is_missing(row["test_accuracy"])]

    def epochs_of(self, run: str) -> pd.DataFrame:
        """The rows of `epochs` of one run, in order."""
        return pd.DataFrame(self.epochs[self.epochs["run"] == run])

    @property
    def published_metrics(self) -> tuple[str, ...]:
        """Metrics for which someone else's figures stand beside ours."""
        return tuple(c.removeprefix("published_") for c in self.runs.columns if c.startswith("published_"))

    @property
    def csv_table(self) -> pd.DataFrame:
        """All figures, as `comparison.csv` holds them; with repeats their number, and the bounds of each interval.

        The training that stands for a run, which may be promoted, is the one whose answers are shown.
        """
        own = (metric.name for metric in own_metrics(self.runs.columns))
        columns = [*csv_columns(), *own, *(f"published_{metric}" for metric in self.published_metrics)]
        table = self.runs.filter(items=columns).assign(run_id=self.runs["answers_of"])
        if not self.has_repeats:
            return table
        table = table.assign(repeats=self.runs["trained"])
        for metric in dict.fromkeys(name for row in self.rows for name in row["intervals"] if name in columns):
            bounds = [row["intervals"].get(metric, (math.nan, math.nan)) for row in self.rows]
            table[[f"{metric}_low", f"{metric}_high"]] = bounds
        return table

    @property
    def has_repeats(self) -> bool:
        """Whether a run was trained more than once, or shares an interval with one that differs in the seed alone."""
        return len(self.trainings) > len(self.runs) or any(row["intervals"] for row in self.rows)


def read_comparison(
    client: MlflowClient, study: str, parent_run_id: str | None = None, *, for_report: bool = True
) -> Comparison:
    """The comparison of an execution of `study`: the one of that parent run, else the latest.

    Args:
        client: of the store.
        study: its name.
        parent_run_id: of the execution.
        for_report: read what the report alone has, too: what the machines did, which is most of what a long run has in
            MLflow, and the executions before.

    Raises:
        InputError: when MLflow has no such execution, or it has no runs.
    """
    parent = find_execution(client, study, parent_run_id)
    children = read_children(client, parent)
    tags = parent.data.tags
    execution = tags["rampline.execution"]
    if not children:
        where = f"MLflow at {mask(client.tracking_uri)}"
        raise InputError(f"study {study}: execution {execution} has no runs in {where}")
    declared = tags.get("rampline.reference", "")
    histories = read_histories(client, children, compared_epochs())
    epochs = _epochs(children, histories)
    study = tags["rampline.study"]
    rows = [run_row(child, parent) | own_figures(client, child) for child in children]
    _add_figures(rows, epochs, "")
    reference = choose_reference(rows, declared)
    _add_figures(rows, epochs, next((row["machine"] for row in rows if name_of_run(row) == reference), ""))
    trainings = _trainings(rows, epochs, study, execution)
    runs = with_intervals_of_speedup(with_scaling(merge_trainings(trainings), reference), reference)
    scored = [row for row in runs if row["status"] == FINISHED and not is_missing(row["test_accuracy"])]
    shown = {row["run_id"]: row["run"] for row in runs}
    hours = tags.get("rampline.deadline_hours")
    return Comparison(
        study=study,
        execution=execution,
        parent_run_id=parent.info.run_id,
        experiment_id=parent.info.experiment_id,
        reference=reference,
        declared_reference=declared,
        started=datetime.fromtimestamp(parent.info.start_time / 1000).astimezone(),
        command=tags.get("rampline.command", ""),
        deadline_hours=None if hours is None else float(hours),
        accuracy_tolerance=float(tags.get("rampline.accuracy_tolerance", "0.01")),  # before it was a tag
        published_source=tags.get("rampline.published_source", ""),
        runs=with_published_speedup(_table(runs), reference),
        trainings=_table(with_scaling(trainings, reference, runs)),
        answers=read_answers(client, scored),
        epochs=merge_epochs(epochs, trainings),
        environment=environment_of(children, parent),
        system=read_system(client, children, histories, shown) if for_report else [],
        trends=read_trends(client, parent, children, runs) if for_report else (),
        not_measured=tuple(tags.get(NOT_MEASURED_TAG, "").splitlines()),
    )


def is_missing(value: Any) -> bool:
    """Whether a figure is not there: None, NaN, pandas' NA, infinite or an empty text."""
    return bool(pd.isna(value)) or value == "" or (isinstance(value, float) and math.isinf(value))


def written(value: Any, write: Callable[[Any], str]) -> str:
    """A figure as text; a dash where it is not there."""
    return NONE if is_missing(value) else write(value)


def comparable_settings(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Data, network, precision, operations, pipeline and workers of a run: if equal, throughputs tell of replicas."""
    return (row["fingerprint"], row["workers_of_attempts"], *(str(row[key]) for key in COMPARABLE))


def is_scaled(row: Mapping[str, Any], reference: Mapping[str, Any]) -> bool:
    """Whether a run is the training of the reference on more replicas."""
    more = (row["replicas"] or 0) > (reference["replicas"] or math.inf)
    return more and comparable_settings(row) == comparable_settings(reference)


def is_faster_by_replicas(row: Mapping[str, Any], reference: Mapping[str, Any]) -> bool:
    """Whether nothing but its replicas can make a scaled run faster.

    Another engine can, more steps in a call, a larger batch of each replica, and larger micro-batches of that.
    """
    no_larger = (row["per_replica_batch_size"] or math.inf) <= (reference["per_replica_batch_size"] or 0)
    no_larger = no_larger and _micro_batch_size(row) <= _micro_batch_size(reference)
    same_calls = all(row[key] == reference[key] for key in ("engine", "steps_per_call"))
    return is_scaled(row, reference) and same_calls and no_larger


def _micro_batch_size(row: Mapping[str, Any]) -> float:
    """Images that a replica computes at once; `auto`, which begins with one micro-batch, counts as that."""
    parts = row["batch.accumulate"]
    return row["per_replica_batch_size"] / (int(parts) if parts.isdecimal() else 1)


def csv_columns() -> list[str]:
    """The columns of `comparison.csv`, in this order; `published_METRIC` columns follow where a study has them."""
    metrics = [metric for metric in metrics_of_run() if metric.in_csv]
    first_sum = next(number for number, metric in enumerate(metrics) if metric.sum_of)
    names = [metric.name for metric in metrics]
    return [*IDENTITY, *names[:first_sum], "starts_from", *names[first_sum:], "bound", "verdict"]


def _epochs(children: list[Run], histories: Histories) -> pd.DataFrame:
    rows = [row for child in children for row in epoch_rows(child, histories)]
    names = compared_epochs()
    return pd.DataFrame(rows, columns=["run", "epoch", *names]).astype(dict.fromkeys(names, "float64"))


def _add_figures(rows: list[dict[str, Any]], epochs: pd.DataFrame, machine: str) -> None:
    """Figures of each run's epochs; those of its speed from the epochs on `machine`, else on the last with an epoch."""
    of_run, none = dict(tuple(epochs.groupby("run", sort=False))), epochs.head(0)
    for row in rows:
        own = of_run.get(row["run"], none)
        names = _machines_of(own, row) or [name for _, name in row["machines"]]
        row["machine"] = machine if machine in names else names[-1]
        row |= epoch_figures(own, timed_epochs(own, row), row["first_epochs"])


def timed_epochs(epochs: pd.DataFrame, row: Mapping[str, Any]) -> pd.DataFrame:
    """Those of a run's epochs that its speed is of: the ones on its machine."""
    return pd.DataFrame(epochs.loc[[machine == row["machine"] for machine in _machines_of(epochs, row)]])


def _machines_of(epochs: pd.DataFrame, row: Mapping[str, Any]) -> list[str]:
    """On which machine each of a run's epochs was trained."""
    firsts, names = zip(*row["machines"], strict=True)
    return [names[max(bisect_right(firsts, epoch) - 1, 0)] for epoch in epochs["epoch"]]


def _trainings(rows: list[dict[str, Any]], epochs: pd.DataFrame, study: str, execution: str) -> list[dict[str, Any]]:
    """The rows with what they take together with those that they start from; all have all columns, in their order."""
    last: Any = epochs.groupby("run")["elapsed_seconds"].max()
    _add_ancestors(rows, find_ancestors(rows, study, execution), last.fillna(0.0).to_dict())
    told = dict.fromkeys(column for row in rows for column in row)
    published = [column for column in told if column.startswith("published_")]
    columns = [*csv_columns(), *published, *SETTINGS, *(metric.name for metric in metrics_of_run(told))]
    return [{column: row.get(column, math.nan) for column in columns} for row in rows]


def _table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows that have the same columns as a table, each column with its type."""
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    kinds = {metric.name: "Int64" if metric.unit is COUNT else "float64" for metric in metrics_of_run(columns)}
    kinds |= {column: "float64" for column in columns if column.startswith(("published_", "seconds_before"))}
    kinds |= dict.fromkeys((*COUNTS, "virtual_devices", "attempts"), "Int64")
    typed = {name: pd.array(columns[name], dtype=kind) for name, kind in kinds.items()}
    return pd.DataFrame(columns | typed)


def _rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _add_ancestors(rows: list[dict[str, Any]], ancestors: Mapping[str, str], elapsed: Mapping[str, float]) -> None:
    """What a run takes together with those that it starts from, which stand before it; `elapsed`: seconds by run."""
    by_name: dict[str, dict[str, Any]] = {}
    sums = {metric.name: metric.sum_of for metric in metrics_of_run() if metric.sum_of}
    for row in rows:
        ancestor = by_name.get(ancestors.get(row["run"], ""), {})
        row["starts_from"] = ancestor.get("run", "")
        row["epochs_in_all"] = row["epochs"] + ancestor.get("epochs_in_all", 0)
        row["seconds_before"] = ancestor.get("seconds_before", 0.0) + elapsed.get(row["starts_from"], 0.0)
        if ancestor:
            row |= {name: row[own] + ancestor.get(name, ancestor[own]) for name, own in sums.items()}
        by_name[row["run"]] = row


def epoch_figures(epochs: pd.DataFrame, timed: pd.DataFrame, first_epochs: Sequence[int]) -> dict[str, Any]:
    """Best and last epoch, steady throughput with its range and steady seconds of one run's epochs (in order).

    Throughput and seconds are those of the epochs `timed`; `first_epochs` are those of its attempts.
    """
    figures: dict[str, Any] = {"epochs": len(epochs)}
    numbers = epochs["epoch"].tolist()
    for metric in metrics_of_run():
        summary = metric.summary
        if summary and summary in OF_STEADY:
            values = steady(timed, metric.of, first_epochs)
            figures |= {metric.name: OF_STEADY[summary](values)} if values else {}
        elif summary:
            values = zip(numbers, epochs[metric.of].tolist(), strict=True)
            points = [(epoch, value) for epoch, value in values if not math.isnan(value)]
            figures |= {metric.name: _choose(metric, summary, points)} if points else {}
    return figures


def _choose(metric: Metric, summary: Summary, points: Sequence[tuple[int, float]]) -> float:
    """The figure from the epochs and their values; the first of equal ones is the best."""
    measured = find_metric(metric.of)
    choose = min if measured and measured.better == "lower" else max
    best_epoch, best = choose(points, key=lambda point: point[1])
    return {Summary.BEST: best, Summary.BEST_EPOCH: best_epoch, Summary.LAST: points[-1][1]}[summary]


def steady(epochs: pd.DataFrame, key: str, first_epochs: Sequence[int]) -> list[float]:
    """A metric of one run's epochs without the first of each attempt, unless there is no other."""
    numbers = epochs["epoch"].tolist()
    values = dict(zip(numbers, epochs[key].tolist(), strict=True))
    kept = without_tracing(numbers, first_epochs) or numbers
    return [values[epoch] for epoch in kept if math.isfinite(values[epoch])]


def choose_reference(rows: Iterable[Mapping[str, Any]], declared: str) -> str:
    """The declared reference if it finished, else the first run that did, else none (an empty name)."""
    finished = (row for row in rows if row["status"] == FINISHED)
    usable = [name_of_run(row) for row in finished if not is_missing(row.get("images_per_second"))]
    if declared in usable:
        return declared
    return usable[0] if usable else ""


def with_published_speedup(runs: pd.DataFrame, reference: str) -> pd.DataFrame:
    """`runs` with the speed-up that follows from others' times, where they publish the times alone."""
    for time in (f"published_{metric.name}" for metric in metrics_of_run() if metric.unit is SECONDS):
        if not reference or time not in runs:
            continue
        follows = runs.set_index("run").loc[reference, time] / runs[time]
        follows = follows.where(runs["run"] != reference)
        if follows.notna().any():
            told = runs["published_speedup"] if "published_speedup" in runs else pd.Series(math.nan, runs.index)
            runs = runs.assign(published_speedup=told.fillna(follows))
    return runs


def with_scaling(
    rows: Sequence[dict[str, Any]], reference: str, among: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """`rows` with `speedup`, `scaling_efficiency` and `train_seconds_vs_reference` (NaN where they say nothing).

    The reference is `among` other rows, if these are given.
    """
    base = next((row for row in among or rows if row["run"] == reference), None)
    return [row | _scaling(row, base) for row in rows]


def _scaling(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> dict[str, float]:
    of_time, scaling = math.nan, dict.fromkeys(logged(Source.COMPARISON), math.nan)
    if base and row["status"] == FINISHED:
        same_work = all(row[key] == base[key] for key in ("epochs_in_all", "fingerprint", *SAME_DATA))
        if same_work and {name for _, name in row["machines"]} == {base["machine"]}:
            alone, in_all = "train_seconds", "train_seconds_in_all"
            own, of_base = (each[alone] if math.isnan(each[in_all]) else each[in_all] for each in (row, base))
            of_time = own / (of_base or math.nan)
        if row["machine"] == base["machine"]:
            speedup = row["images_per_second"] / (base["images_per_second"] or math.nan)
            scaling["speedup"] = speedup
            if name_of_run(row) == base["run"] or is_faster_by_replicas(row, base) or is_faster_by_replicas(base, row):
                ratio = (row["replicas"] or math.nan) / (base["replicas"] or math.nan)
                scaling["scaling_efficiency"] = speedup / ratio
    return {**scaling, "train_seconds_vs_reference": of_time}
