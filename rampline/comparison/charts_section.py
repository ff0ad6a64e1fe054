"""The report's charts: accuracy, loss and learning rate by epoch or by time, throughput, best against last epoch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import pandas as pd

from rampline.comparison.charts import (
    INK,
    axis,
    curve_chart,
    describe_drawn,
    drawn_runs,
    dumbbell,
    finite,
    label,
    points,
    range_areas,
    row_chart,
    run_lines,
    style_runs,
    tooltip,
)
from rampline.comparison.repeats import HIGH, LOW
from rampline.comparison.runs import Comparison, is_missing, steady, timed_epochs
from rampline.comparison.section import Chart, Section
from rampline.record.units import write_accuracy, write_quantity, write_ratio

MIN_WINDOW = 0.05  # the smallest range of validation accuracy that a chart shows
DECADE = 10  # a loss that spans more is drawn on a logarithmic scale
# Of all lines of a chart together, and of one at least: the page must stay small enough to send.
MOST_POINTS, FEWEST_POINTS = 3000, 20
WEIGHTS_NOTE = "By time, a run begins where the run ends whose weights it starts from."
RANGE_NOTE = "Of runs that were trained more than once, lines are medians, and areas go from the least to the greatest."
ZOOM_NOTE = "Hold shift to zoom with the wheel or to drag; a double click shows all again."


def make_charts_section(comparison: Comparison) -> Section:
    """The charts as a section of the report, or a sentence that there is nothing to draw."""
    charts, left_out = tuple(make_charts(comparison)), describe_drawn(comparison)
    nothing = "No run has completed an epoch, so there is nothing to draw."
    return Section(
        id="charts",
        title="Charts",
        sentences=(left_out,) if left_out and charts else (),
        charts=charts,
        about="" if charts else nothing,
    )


def make_charts(comparison: Comparison) -> list[Chart]:
    """All charts that the comparison has figures for, of the runs that are drawn."""
    drawn = drawn_runs(comparison)
    runs, epochs = (pd.DataFrame(table[table["run"].isin(drawn)]) for table in (comparison.runs, comparison.epochs))
    comparison = dataclasses.replace(comparison, runs=runs, epochs=epochs)
    charts = [
        _curve(comparison, curve, is_first=number == 0)
        for number, curve in enumerate(curve for curve in CURVES if _values(epochs, curve[0]))
    ]
    if len(runs.dropna(subset=["images_per_second"])):
        charts.append(_throughput(comparison))
    if len(runs.dropna(subset=["best_val_accuracy"])):
        charts.append(_best_and_last(comparison))
    return charts


def accuracy_scale(comparison: Comparison) -> dict[str, Any]:
    """One for training and validation accuracy: low first epochs are cut, runs differ in later ones.

    Every epoch of the later half is inside.
    """
    runs = [row["run"] for row in comparison.finished] or comparison.runs["run"].tolist()
    metrics = ("train_accuracy", "val_accuracy")
    curves = [_values(comparison.epochs_of(run), metric) for run in runs for metric in metrics]
    later = [accuracy for curve in curves for accuracy in curve[len(curve) // 2 :]]
    every = _values(comparison.epochs, *metrics)
    later = later or every
    window = max(4 * (max(later) - min(later)), MIN_WINDOW)
    margin = 0.05 * window
    low = min(max(every) - window, min(later) - margin)
    return {"domain": [max(low, min(every) - margin), max(every) + margin], "nice": False}


def _loss_scale(comparison: Comparison) -> dict[str, Any]:
    """One for both losses, so that their charts can be held to each other; logarithmic where it spans decades."""
    losses = _values(comparison.epochs, "train_loss", "val_loss")
    low, high = min(losses), max(losses)
    if 0 < DECADE * low < high:
        return {"domain": [0.9 * low, 1.1 * high], "nice": False, "type": "log"}
    return {"domain": [low, high + 0.06 * (high - low)], "zero": False}


def _rate_scale(comparison: Comparison) -> dict[str, Any]:
    return {"domain": [0, 1.06 * max(_values(comparison.epochs, "learning_rate")) or 1], "nice": False}


def _values(epochs: pd.DataFrame, *metrics: str) -> list[float]:
    return [value for metric in metrics for value in epochs[metric].dropna().tolist()]


# What is charted over the epochs: a metric, how to read the chart, and its scale.
Curve = tuple[str, str, Callable[[Comparison], dict[str, Any]]]
CURVES: tuple[Curve, ...] = (
    ("val_accuracy", "Share of right answers on images that are not trained on.", accuracy_scale),
    (
        "train_accuracy",
        "As the images were trained on. Far above the validation accuracy, a run learns its images by heart.",
        accuracy_scale,
    ),
    ("val_loss", "Where it rises while the training loss falls, more epochs do harm.", _loss_scale),
    ("train_loss", "On the same scale. Without penalties on weights.", _loss_scale),
    (
        "learning_rate",
        "At the end of each epoch, scaling included. Runs with the same curve share one line.",
        _rate_scale,
    ),
)


def _curve(comparison: Comparison, curve: Curve, *, is_first: bool) -> Chart:
    """A chart over the epochs, or over time."""
    metric, caption, limits = curve
    words = metric.replace("val_", "validation ").replace("train_", "training ").replace("_", " ")
    before = {row["run"]: row["seconds_before"] for row in comparison.rows}
    by_epoch = axis("epoch", "epoch", tickMinStep=1)
    by_time = axis("elapsed_seconds", "seconds since training began", scale={"domainMin": 0})
    y = axis(metric, words, scale=limits(comparison), format="~g")
    runs = comparison.runs["run"].tolist()
    styles, rows, most = style_runs(runs), [], max(MOST_POINTS // len(runs), FEWEST_POINTS)
    for run in runs:
        own = comparison.epochs_of(run).dropna(subset=[metric]).to_dict("records")
        # The last epoch is always among them.
        for values in own[:: -math.ceil(len(own) / most) or -1][::-1]:
            at = {"epoch": float(values["epoch"]), "elapsed_seconds": values["elapsed_seconds"] + before[run]}
            at |= {metric: float(values[metric])} | _range(values, metric)
            rows.append(finite({"run": run, "color": styles[run].color, **at}))
    areas = [range_areas(y)] if any("low" in row for row in rows) else []
    drawn = {
        x["field"]: curve_chart(rows, x, y, *areas, run_lines(rows, x, y, styles), points(by_epoch, by_time, y))
        for x in (by_epoch, by_time)
        if all(x["field"] in row for row in rows)
    }
    notes = [caption]
    if is_first:
        notes += [WEIGHTS_NOTE] if any(before.values()) else []
        is_thinned = any(len(comparison.epochs_of(run)) > most for run in runs)
        notes += [RANGE_NOTE] if areas else []
        notes += [ZOOM_NOTE, *(["Of long runs not every epoch is drawn."] if is_thinned else [])]
    return Chart(
        title=words.capitalize(),
        caption=" ".join(notes),
        spec=drawn["epoch"],
        by_time={key: drawn["elapsed_seconds"][key] for key in ("encoding", "layer")} if len(drawn) > 1 else {},
    )


def _range(values: Mapping[Hashable, Any], metric: str) -> dict[str, float]:
    """Where a run was trained more than once, and not with equal outcome."""
    low, high = (values.get(f"{metric}{end}", math.nan) for end in (LOW, HIGH))
    return {"low": float(low), "high": float(high)} if low < high else {}


def _throughput(comparison: Comparison) -> Chart:
    runs = [row for row in comparison.rows if not is_missing(row["images_per_second"])]
    styles = style_runs(comparison.runs["run"].tolist())
    rows, ticks = [], []
    for figures in runs:
        run, rate, speedup = figures["run"], float(figures["images_per_second"]), figures["speedup"]
        text = write_quantity(rate) + ("" if is_missing(speedup) else f"\N{EN SPACE}{write_ratio(speedup)}")
        end = max(rate, float(figures["images_per_second_max"]))
        rows.append({"run": run, "color": styles[run].color, "images_per_second": rate, "end": end, "text": text})
        timed = timed_epochs(comparison.epochs_of(run), figures)
        each_rate = steady(timed, "images_per_second", figures["first_epochs"])
        ticks += [{"run": run, "images_per_second": float(each)} for each in each_rate]
    highest = max(row["end"] for row in rows)
    reference = f" The factor is the speed-up against {comparison.reference}." if comparison.reference else ""
    bars = {
        "mark": {"type": "bar", "opacity": 0.75, "height": {"band": 0.5}},
        "encoding": {"tooltip": tooltip(images_per_second="images/s")},
    }
    each_epoch = {
        "data": {"values": ticks},
        "mark": {"type": "tick", "thickness": 1, "opacity": 0.55, "size": 11},
        "encoding": {"color": {"value": INK}},
    }
    x = axis("images_per_second", "training throughput, images/s", scale={"domain": [0, 1.5 * highest], "nice": False})
    return Chart(
        title="Throughput",
        caption="Median over epochs without the first of each attempt, which holds tracing; each tick is one epoch."
        + reference,
        spec=row_chart(rows, x, bars, each_epoch, label("end", "text")),
    )


def _best_and_last(comparison: Comparison) -> Chart:
    styles = style_runs(comparison.runs["run"].tolist())
    rows = [
        {"run": row["run"], "color": styles[row["run"]].color, "text": write_accuracy(row["best_val_accuracy"])}
        | {"best": row["best_val_accuracy"], "last": row["last_val_accuracy"]}
        for row in comparison.rows
        if not is_missing(row["best_val_accuracy"])
    ]
    return Chart(
        title="Best against last epoch",
        caption="Filled: the best epoch, whose checkpoint is scored. Open: the last. A gap is training too long.",
        spec=dumbbell(rows, "last", "best", "validation accuracy", tooltip(best="best epoch", last="last epoch")),
    )
