"""The report's charts: accuracy by epoch and by time, learning rate, throughput, best against last epoch."""

from __future__ import annotations

from typing import Any

from rampline.comparison.charts import (
    INK,
    axis,
    curve_chart,
    describe_drawn,
    dumbbell,
    label,
    pick_drawn,
    points,
    row_chart,
    run_lines,
    style_runs,
    tooltip,
)
from rampline.comparison.runs import Comparison, is_missing, steady_throughput
from rampline.comparison.section import Chart, Section
from rampline.record.units import write_accuracy, write_quantity, write_ratio

MIN_WINDOW = 0.05  # the smallest range of validation accuracy that a chart shows
ZOOM_NOTE = "Hold shift to zoom with the wheel or to drag; a double click shows all again."


def make_charts_section(comparison: Comparison) -> Section:
    """The charts as a section of the report, or a sentence that there is nothing to draw."""
    charts, left_out = tuple(make_charts(pick_drawn(comparison))), describe_drawn(comparison)
    nothing = "No run has completed an epoch, so there is nothing to draw."
    return Section(
        id="charts",
        title="Charts",
        sentences=(left_out,) if left_out and charts else (),
        charts=charts,
        about="" if charts else nothing,
    )


def make_charts(comparison: Comparison) -> list[Chart]:
    """All charts that the comparison has figures for."""
    epochs, runs = comparison.epochs, comparison.runs
    charts: list[Chart] = []
    if len(epochs.dropna(subset=["val_accuracy"])):
        charts.append(_by_epoch(comparison))
    if len(epochs.dropna(subset=["val_accuracy", "elapsed_seconds"])):
        charts.append(_by_time(comparison))
    if len(runs.dropna(subset=["images_per_second"])):
        charts.append(_throughput(comparison))
    if len(runs.dropna(subset=["best_val_accuracy"])):
        charts.append(_best_and_last(comparison))
    if len(epochs.dropna(subset=["learning_rate"])):
        charts.append(_learning_rate(comparison))
    return charts


def _by_epoch(comparison: Comparison) -> Chart:
    return Chart(
        title="Validation accuracy by epoch",
        caption=f"Equal epochs are equal numbers of images seen, whatever they cost. {ZOOM_NOTE}",
        spec=_curves(comparison, axis("epoch", "epoch", tickMinStep=1), _accuracy_axis(comparison)),
    )


def _by_time(comparison: Comparison) -> Chart:
    before = {row["run"]: row["seconds_before"] for row in comparison.rows}
    after = " A run begins where the run ends whose weights it starts from." if any(before.values()) else ""
    return Chart(
        title="Validation accuracy by wall-clock",
        caption="The same points against time: what a run has reached if you stop waiting." + after,
        spec=_curves(
            comparison,
            axis("elapsed_seconds", "seconds since training began", scale={"domainMin": 0}),
            _accuracy_axis(comparison),
            before,
        ),
    )


def _learning_rate(comparison: Comparison) -> Chart:
    highest = max(comparison.epochs["learning_rate"].dropna().tolist())
    return Chart(
        title="Learning rate by epoch",
        caption="At the end of each epoch, scaling included. Runs with the same curve share one line.",
        spec=_curves(
            comparison,
            axis("epoch", "epoch", tickMinStep=1),
            axis(
                "learning_rate", "learning rate", scale={"domain": [0, 1.06 * highest or 1], "nice": False}, format="~g"
            ),
        ),
    )


def _accuracy_axis(comparison: Comparison) -> dict[str, Any]:
    return axis(
        "val_accuracy", "validation accuracy", scale={"domain": list(accuracy_limits(comparison)), "nice": False}
    )


def _curves(
    comparison: Comparison, x: dict[str, Any], y: dict[str, Any], before: dict[str, float] | None = None
) -> dict[str, Any]:
    """One line per run over its epochs; `before` is what each run's x begins with."""
    names, rows = (x["field"], y["field"]), []
    styles = style_runs(comparison.runs["run"].tolist())
    for run in comparison.runs["run"].tolist():
        for values in comparison.epochs_of(run).dropna(subset=list(names)).to_dict("records"):
            rows.append({"run": run, "color": styles[run].color, **{name: float(values[name]) for name in names}})
            rows[-1][x["field"]] += before[run] if before else 0
    return curve_chart(rows, x, y, run_lines(rows, x, y, styles), points(x, y))


def _throughput(comparison: Comparison) -> Chart:
    runs = comparison.runs.dropna(subset=["images_per_second"])
    styles = style_runs(comparison.runs["run"].tolist())
    rows, ticks = [], []
    for figures in runs.to_dict("records"):
        run, rate, speedup = figures["run"], float(figures["images_per_second"]), figures["speedup"]
        text = write_quantity(rate) + ("" if is_missing(speedup) else f"\N{EN SPACE}{write_ratio(speedup)}")
        end = max(rate, float(figures["images_per_second_max"]))
        rows.append({"run": run, "color": styles[run].color, "images_per_second": rate, "end": end, "text": text})
        ticks += [
            {"run": run, "images_per_second": float(each)} for each in steady_throughput(comparison.epochs_of(run))
        ]
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
        caption="Median over epochs without the first, which holds tracing; each tick is one epoch." + reference,
        spec=row_chart(rows, x, bars, each_epoch, label("end", "text")),
    )


def _best_and_last(comparison: Comparison) -> Chart:
    rows, styles = [], style_runs(comparison.runs["run"].tolist())
    for figures in comparison.runs.dropna(subset=["best_val_accuracy"]).to_dict("records"):
        best, last = float(figures["best_val_accuracy"]), float(figures["last_val_accuracy"])
        color = styles[figures["run"]].color
        rows.append({"run": figures["run"], "color": color, "best": best, "last": last, "text": write_accuracy(best)})
    return Chart(
        title="Best against last epoch",
        caption="Filled: the best epoch, whose checkpoint is scored. Open: the last. A gap is training too long.",
        spec=dumbbell(
            rows,
            "last",
            "best",
            "validation accuracy",
            tooltip(best="best epoch", last="last epoch"),
        ),
    )


def accuracy_limits(comparison: Comparison) -> tuple[float, float]:
    """The range of validation accuracy to look at: low first epochs are cut, for runs differ in the later ones.

    Every epoch of the later half is inside.
    """
    runs = [row["run"] for row in comparison.finished] or comparison.runs["run"].tolist()
    curves = [comparison.epochs_of(run)["val_accuracy"].dropna().tolist() for run in runs]
    later = [accuracy for curve in curves for accuracy in curve[len(curve) // 2 :]]
    every = comparison.epochs["val_accuracy"].dropna().tolist()
    later = later or every
    window = max(4 * (max(later) - min(later)), MIN_WINDOW)
    margin = 0.05 * window
    low = min(max(every) - window, min(later) - margin)
    return max(low, min(every) - margin), max(every) + margin
