"""The report's charts: accuracy by epoch and by time, learning rate, throughput, best against last epoch."""

from __future__ import annotations

import dataclasses

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rampline.comparison.canvas import (
    FONT_SIZE,
    INK,
    PAPER,
    WIDTH,
    RunStyle,
    describe_drawn,
    grid,
    make_axes,
    make_row_axes,
    pick_drawn,
    shorten,
    spread,
    style_runs,
    write_svg,
)
from rampline.comparison.runs import Comparison, is_missing, steady_throughput
from rampline.comparison.section import Chart, Section
from rampline.record.units import write_accuracy, write_quantity, write_ratio

HEIGHT = 250  # SVG units
NAMED_RUNS = 12  # more lines than that are told apart by the legend above the charts alone
NAME_INDENT = 36  # SVG units from the axes to the names, with a piece of the line between: long enough for its dashes
NAME_GAP = 15  # SVG units between the names of two lines
SHARED_DASH = 5  # length of one run's part of a line that several runs share, in line widths
MIN_WINDOW = 0.05  # the smallest range of validation accuracy that a chart shows
Line = tuple[tuple[float, float], ...]


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


def draw_lines(comparison: Comparison, x: str, y: str, title: str, limits: tuple[float, float]) -> Axes:
    """Column `y` of the epochs over column `x`, one line per run, in the range `limits` of y."""
    styles = style_runs(comparison.runs["run"].tolist())
    named = len(styles) <= NAMED_RUNS
    right = NAME_INDENT + 6.2 * max(len(shorten(run)) for run in styles) if named else 10
    axes = make_axes(HEIGHT, left=44, right=right, title=title)
    grid(axes, "y")
    lines = _read_lines(comparison, x, y)
    for run, line in lines.items():
        sharing = [other for other in lines if lines[other] == line]
        _draw_line(axes, line, styles[run], place=sharing.index(run), sharing=len(sharing))
    axes.margins(x=0.02)
    axes.set_ylim(*limits)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    if named:
        _name_lines(axes, lines, styles)
    return axes


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


def _read_lines(comparison: Comparison, x: str, y: str) -> dict[str, Line]:
    lines: dict[str, Line] = {}
    for run in comparison.runs["run"].tolist():
        points = comparison.epochs_of(run).dropna(subset=[x, y])
        if len(points):
            lines[run] = tuple(zip(points[x].tolist(), points[y].tolist(), strict=True))
    return lines


def _draw_line(axes: Axes, line: Line, style: RunStyle, *, place: int, sharing: int) -> None:
    """A line; where several runs have the very same one, their colours take turns along it."""
    dashes, offset = style.dashes, 0
    if sharing > 1:
        dashes, offset = (SHARED_DASH, SHARED_DASH * (sharing - 1)), SHARED_DASH * (sharing - place)
    drawn = axes.plot(*zip(*line, strict=True), color=style.color, linewidth=1.7, dash_capstyle="butt")[0]
    drawn.set_linestyle((offset, dashes) if dashes else "-")
    if sharing == 1 or len(line) == 1:
        axes.plot(*line[-1], "o", color=style.color, markersize=4.5)


def _name_lines(axes: Axes, lines: dict[str, Line], styles: dict[str, RunStyle]) -> None:
    """Each run's colour and name, as near to the height of its last point as the others let it."""
    low, high = axes.get_ylim()
    gap = (high - low) * NAME_GAP / (axes.get_position().height * HEIGHT)
    heights = spread([max(line[-1][1], low) for line in lines.values()], gap, low, high)
    across, unit = axes.get_yaxis_transform(), 1 / (axes.get_position().width * WIDTH)
    sample, indent = (1 + 8 * unit, 1 + (NAME_INDENT - 6) * unit), 1 + NAME_INDENT * unit
    for run, height in zip(lines, heights, strict=True):
        drawn = axes.plot(sample, [height, height], color=styles[run].color, transform=across, clip_on=False)[0]
        drawn.set(linewidth=1.9, linestyle=(0, styles[run].dashes) if styles[run].dashes else "-")
        name = axes.text(indent, height, shorten(run), transform=across, va="center", color=INK, fontsize=FONT_SIZE)
        name.set_parse_math(False)
