"""The charts of the report: accuracy by epoch and by time, learning rate, throughput, best against last epoch."""

from __future__ import annotations

import dataclasses

from matplotlib.ticker import FuncFormatter, MaxNLocator

from rampline.comparison.canvas import FONT_SIZE, make_row_axes, write_svg
from rampline.comparison.columns import is_missing
from rampline.comparison.drawn import describe_drawn, pick_drawn
from rampline.comparison.lines import accuracy_limits, draw_lines
from rampline.comparison.palette import INK, PAPER, style_runs
from rampline.comparison.scaling import steady_throughput
from rampline.comparison.section import Chart, Section
from rampline.comparison.table import Comparison
from rampline.record.units import write_accuracy, write_quantity, write_ratio


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
    axes = draw_lines(comparison, "epoch", "val_accuracy", "validation accuracy", accuracy_limits(comparison))
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    return Chart(
        title="Validation accuracy by epoch",
        caption="Equal epochs are equal numbers of images seen, whatever they cost.",
        svg=write_svg(axes, "by-epoch"),
    )


def _by_time(comparison: Comparison) -> Chart:
    limits = accuracy_limits(comparison)
    seconds_before = {row["run"]: row["seconds_before"] for row in comparison.rows}
    before = [seconds_before[run] for run in comparison.epochs["run"].tolist()]
    shifted = comparison.epochs.assign(elapsed_seconds=comparison.epochs["elapsed_seconds"] + before)
    shown = dataclasses.replace(comparison, epochs=shifted)
    axes = draw_lines(shown, "elapsed_seconds", "val_accuracy", "validation accuracy", limits)
    axes.set_xlabel("seconds since training began")
    axes.set_xlim(left=0)
    after = " A run begins where the run ends whose weights it starts from." if any(before) else ""
    return Chart(
        title="Validation accuracy by wall-clock",
        caption="The same points against time: what a run has reached if you stop waiting." + after,
        svg=write_svg(axes, "by-time"),
    )


def _learning_rate(comparison: Comparison) -> Chart:
    highest = max(comparison.epochs["learning_rate"].dropna().tolist())
    axes = draw_lines(comparison, "epoch", "learning_rate", "learning rate", (0, 1.06 * highest or 1))
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.yaxis.set_major_formatter(FuncFormatter(_write_learning_rate))
    return Chart(
        title="Learning rate by epoch",
        caption="At the end of each epoch, scaling included. Runs with the same curve share one line.",
        svg=write_svg(axes, "learning-rate"),
    )


def _write_learning_rate(value: float, _: int) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}" if value else "0"


def _throughput(comparison: Comparison) -> Chart:
    runs = comparison.runs.dropna(subset=["images_per_second"])
    styles = style_runs(comparison.runs["run"].tolist())
    axes = make_row_axes(runs["run"].tolist(), "training throughput, images/s", right=92)
    for row, figures in enumerate(runs.to_dict("records")):
        run, height = figures["run"], figures["images_per_second"]
        axes.barh(row, height, height=0.5, color=styles[run].color, alpha=0.75, linewidth=0)
        epochs = steady_throughput(comparison.epochs_of(run))
        axes.plot(epochs, [row] * len(epochs), "|", color=INK, markersize=9, markeredgewidth=0.9, alpha=0.55)
        label = write_quantity(height)
        if not is_missing(figures["speedup"]):
            label += f"\N{EN SPACE}{write_ratio(figures['speedup'])}"
        end = max(height, figures["images_per_second_max"])
        axes.annotate(label, (end, row), (6, 0), textcoords="offset points", va="center", color=INK, fontsize=FONT_SIZE)
    axes.set_xlim(0, max(runs["images_per_second_max"].tolist()) * 1.04)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    against = f" The factor is the speed-up against {comparison.reference}." if comparison.reference else ""
    return Chart(
        title="Throughput",
        caption=f"Median over epochs without the first, which holds tracing; each tick is one epoch.{against}",
        svg=write_svg(axes, "throughput"),
    )


def _best_and_last(comparison: Comparison) -> Chart:
    runs = comparison.runs.dropna(subset=["best_val_accuracy"])
    styles = style_runs(comparison.runs["run"].tolist())
    axes = make_row_axes(runs["run"].tolist(), "validation accuracy", right=112)
    for row, figures in enumerate(runs.to_dict("records")):
        color = styles[figures["run"]].color
        best, last = figures["best_val_accuracy"], figures["last_val_accuracy"]
        axes.plot([last, best], [row, row], color=color, linewidth=2, alpha=0.6)
        axes.plot(last, row, "o", markerfacecolor=PAPER, markeredgecolor=color, markeredgewidth=1.6, markersize=7)
        axes.plot(best, row, "o", color=color, markersize=7, markeredgewidth=0)
        text = f"{write_accuracy(best)}\N{EN SPACE}epoch {figures['best_epoch']}"
        axes.text(1.03, row, text, transform=axes.get_yaxis_transform(), va="center", color=INK, fontsize=FONT_SIZE)
    low, high = min(runs["last_val_accuracy"].tolist()), max(runs["best_val_accuracy"].tolist())
    room = max(0.08 * (high - low), 0.002)
    axes.set_xlim(low - room, high + room)
    return Chart(
        title="Best against last epoch",
        caption="Filled: the best epoch, whose checkpoint is scored. Open: the last. A gap is training too long.",
        svg=write_svg(axes, "best-last"),
    )
