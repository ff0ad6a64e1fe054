"""The same runs seen in four ways: best and last epoch, after equal epochs, after equal time, time to a target.

Equal epochs are as many as the finished run with the fewest has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rampline.comparison.charts import drawn_runs, dumbbell, finite, style_runs, tooltip
from rampline.comparison.mlflow_reader import SAME_DATA
from rampline.comparison.repeats import REACHED
from rampline.comparison.runs import Comparison, is_missing, written
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.record.units import (
    list_names,
    write_accuracy,
    write_count,
    write_duration,
    write_number_of,
    write_percent,
)

TARGET = 0.99

_accuracy = partial(written, write=write_accuracy)


@dataclass(frozen=True, kw_only=True)
class RunView:
    """One finished run in all four ways; accuracies are validation accuracies, shares.

    Attributes:
        best_epoch: 1-based.
        at_equal_epochs: reached by the end of `Views.epochs` epochs; NaN if it has no accuracy by then.
        at_equal_time: reached within `Views.seconds`; NaN when not one epoch is complete by then.
        seconds_to_target: until `Views.target` is reached; NaN if it never is.
    """

    run: str
    best_epoch: int
    best: float
    last: float
    at_equal_epochs: float
    at_equal_time: float
    seconds_to_target: float


@dataclass(frozen=True, kw_only=True)
class Views:
    """All finished runs that were validated, and what they are compared at."""

    epochs: int
    seconds: float
    target: float
    runs: tuple[RunView, ...]


class _Point(NamedTuple):
    epoch: int
    seconds: float
    accuracy: float
    reached: float
    is_own: bool


def make_views(comparison: Comparison) -> Views | None:
    """The four ways for the finished runs; None for fewer than two of them with validation accuracy and times."""
    curves = {row["run"]: _curve(comparison, row) for row in _alike(comparison)}
    curves = {run: curve for run, curve in curves.items() if any(point.is_own for point in curve)}
    if len(curves) < 2:
        return None
    epochs = min(curve[-1].epoch for curve in curves.values())
    seconds = min(curve[-1].seconds for curve in curves.values())
    target = TARGET * max(point.reached for curve in curves.values() for point in curve)
    runs = tuple(_view(run, curve, epochs, seconds, target) for run, curve in curves.items())
    return Views(epochs=epochs, seconds=seconds, target=target, runs=runs)


def _alike(comparison: Comparison) -> list[dict[str, Any]]:
    """The finished runs that were validated on the reference's images, and trained on its machine alone."""
    timed, reference = filter(comparison.is_timed_alike, comparison.finished), comparison.reference_row or {}
    keys = ("fingerprint", *SAME_DATA)
    return [row for row in timed if all(row[key] == reference.get(key, row[key]) for key in keys)]


def _curve(comparison: Comparison, row: dict[str, Any]) -> list[_Point]:
    """What a run had reached when, counted from the beginning of the first run that it starts from."""
    curve: list[_Point] = []
    for each in (*reversed(comparison.ancestors_of(row)), row):
        columns = comparison.epochs_of(each["run"])[["epoch", "elapsed_seconds", "val_accuracy", REACHED]]
        epochs, seconds = (curve[-1].epoch, curve[-1].seconds) if curve else (0, 0.0)
        for epoch, elapsed, accuracy, reached in columns.dropna().itertuples(index=False):
            curve.append(_Point(epochs + epoch, seconds + elapsed, accuracy, reached, each is row))
    return curve


def _view(run: str, curve: Sequence[_Point], epochs: int, seconds: float, target: float) -> RunView:
    own = [point for point in curve if point.is_own]
    best = max(own, key=lambda point: point.reached)
    return RunView(
        run=run,
        best_epoch=best.epoch - own[0].epoch + 1,
        best=best.reached,
        last=curve[-1].accuracy,
        at_equal_epochs=max((point.reached for point in curve if point.epoch <= epochs), default=math.nan),
        at_equal_time=max((point.reached for point in curve if point.seconds <= seconds), default=math.nan),
        seconds_to_target=min((point.seconds for point in curve if point.reached >= target), default=math.nan),
    )


def make_ways_section(comparison: Comparison) -> Section | None:
    """The four ways as a section of the report; None where there are fewer than two runs to look at."""
    views = make_views(comparison)
    if views is None:
        return None
    after = f"after {write_number_of('epoch', views.epochs)}", f"after {write_duration(views.seconds)}"
    return Section(
        id="ways",
        title="Ways of looking",
        sentences=(_sentence(views, *after),),
        tables=(_table(views, *after),),
        charts=(_chart(views, after[0], drawn_runs(comparison)),),
        about=(
            "Validation accuracy. “Reached” is the best so far, as that checkpoint is kept. Equal time is the time of "
            f"the run that ended first, evaluation and checkpoints included. A run that starts from another's weights "
            f"has that run's epochs and time before its own. The target is {write_percent(TARGET)} of "
            "the best validation accuracy of any run."
        ),
    )


def _sentence(views: Views, after_epochs: str, after_time: str) -> str:
    ways = {
        after_epochs: {v.run: v.at_equal_epochs for v in views.runs},
        after_time: {v.run: v.at_equal_time for v in views.runs},
        "over all its epochs": {v.run: v.best for v in views.runs},
    }
    leaders = [_leaders(values) for values in ways.values()]
    if all(leader == leaders[0] for leader in leaders):
        have = "has" if len(leaders[0]) == 1 else "have"
        return f"However one looks, {list_names(leaders[0])} {have} reached the most: {', '.join(ways)}."
    parts = (f"{way} it is {list_names(leader)}" for way, leader in zip(ways, leaders, strict=True))
    return f"Which run leads depends on how one looks: {', '.join(parts)}."


def _leaders(values: dict[str, float]) -> list[str]:
    best = max(value for value in values.values() if not is_missing(value))
    return [run for run, value in values.items() if value == best]


def _table(views: Views, *after: str) -> ReportTable:
    head = ("run", "best epoch", "best", "last", *after, f"time to {write_accuracy(views.target)}")
    rows = (
        (
            view.run,
            write_count(view.best_epoch),
            *(_accuracy(value) for value in (view.best, view.last, view.at_equal_epochs, view.at_equal_time)),
            written(view.seconds_to_target, write_duration),
        )
        for view in views.runs
    )
    return ReportTable(title="", head=head, rows=tuple(rows))


def _chart(views: Views, after_epochs: str, runs: Sequence[str]) -> Chart:
    styles, within = style_runs(runs), f"within {write_duration(views.seconds)}"
    rows = [
        finite(
            {"run": view.run, "color": styles[view.run].color, "text": _accuracy(view.at_equal_time)}
            | {"epochs": view.at_equal_epochs, "time": view.at_equal_time}
        )
        for view in views.runs
        if view.run in styles
    ]
    shown = tooltip(time=within, epochs=after_epochs)
    return Chart(
        title="Accuracy at equal time and at equal epochs",
        caption=f"Filled: {within}, the time that all had. Open: {after_epochs}.",
        spec=dumbbell(rows, "epochs", "time", "validation accuracy reached", shown),
    )
