"""Line charts: one line per run over epochs or seconds, each named at the right in its colour."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from rampline.comparison.canvas import FONT_SIZE, WIDTH, grid, make_axes, shorten, spread
from rampline.comparison.palette import INK, RunStyle, style_runs
from rampline.comparison.table import Comparison

HEIGHT = 250  # SVG units
NAMED_RUNS = 12  # more lines than that are told apart by the legend above the charts alone
NAME_INDENT = 36  # SVG units from the axes to the names, with a piece of the line between: long enough for its dashes
NAME_GAP = 15  # SVG units between the names of two lines
SHARED_DASH = 5  # length of one run's part of a line that several runs share, in line widths
MIN_WINDOW = 0.05  # the smallest range of validation accuracy that a chart shows

Line = tuple[tuple[float, float], ...]


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
