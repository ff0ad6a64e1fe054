"""Stacked horizontal bars: what a whole consists of, one bar per run, each part named in a legend above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter

from rampline.comparison.canvas import FONT_SIZE, TITLE_HEIGHT, WIDTH, make_row_axes, write_svg
from rampline.comparison.columns import is_missing
from rampline.comparison.palette import INK, MUTED, PAPER, color_parts
from rampline.record.units import write_quantity

BAR_HEIGHT = 0.6  # of a row
LEGEND_LINE = 17  # SVG units
CHARACTER = 6.7  # width of one in SVG units
SWATCH = 9


def stacked_bars(
    rows: Sequence[tuple[str, Mapping[str, float]]], parts: Sequence[tuple[str, str]], title: str, name: str
) -> str:
    """The chart as an `<svg>` element.

    Args:
        rows: name of a run, and its parts by key, all in the unit that `title` names; one that is missing, not a number
            or below 0 (the noise of a difference) has no piece in the bar, and the total at its right leaves it out.
        parts: key and words of each part, in the order they stand in the bar; the last is the rest, in grey. Parts that
            no run has are not named.
        title: the quantity, with its unit.
        name: a name that no other chart of the page has.

    Raises:
        ValueError: without rows, or with more parts than there are colours.
    """
    if not rows:
        raise ValueError("stacked bars need a row")
    bars = [(run, {key: _length(values.get(key)) for key, _ in parts}) for run, values in rows]
    colors = dict(zip((key for key, _ in parts), color_parts(len(parts)), strict=True))
    present = [(key, words) for key, words in parts if any(values[key] for _, values in bars)]
    legend = _break_legend(present)
    axes = make_row_axes([run for run, _ in bars], title, right=58, above=LEGEND_LINE * len(legend))
    longest = max(sum(values.values()) for _, values in bars) or 1.0
    axes.set_xlim(0, longest)
    for row, (_, values) in enumerate(bars):
        _draw_bar(axes, row, values, colors)
    _draw_legend(axes, legend, colors)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    return write_svg(axes, name)


def _length(value: float | None) -> float:
    return 0.0 if is_missing(value) or value is None else max(float(value), 0.0)


def _draw_bar(axes: Axes, row: int, values: Mapping[str, float], colors: Mapping[str, str]) -> None:
    """The pieces of one bar with their values where these fit, and the total behind it."""
    per_unit = axes.get_position().width * WIDTH / axes.get_xlim()[1]
    start = 0.0
    for key, value in values.items():
        # The thin line between two pieces is theirs: it tells neighbours apart that look alike in grey.
        axes.barh(row, value, left=start, height=BAR_HEIGHT, color=colors[key], edgecolor=PAPER, linewidth=0.6)
        text = write_quantity(value)
        if value * per_unit > CHARACTER * len(text) + 4:
            axes.text(start + value / 2, row, text, ha="center", va="center_baseline", color=PAPER, fontsize=FONT_SIZE)
        start += value
    axes.annotate(
        write_quantity(start),
        (start, row),
        (6, 0),
        textcoords="offset points",
        va="center_baseline",
        color=INK,
        fontsize=FONT_SIZE,
    )


def _break_legend(parts: Sequence[tuple[str, str]]) -> list[list[tuple[float, str, str]]]:
    """Lines of (left edge in SVG units, key, words), each as wide as the chart at most."""
    lines: list[list[tuple[float, str, str]]] = [[]]
    left = 0.0
    for key, words in parts:
        width = SWATCH + 5 + CHARACTER * len(words) + 10
        if lines[-1] and left + width > WIDTH:
            lines.append([])
            left = 0.0
        lines[-1].append((left, key, words))
        left += width
    return lines


def _draw_legend(axes: Axes, lines: Sequence[Sequence[tuple[float, str, str]]], colors: Mapping[str, str]) -> None:
    figure = axes.get_figure(root=True)
    assert figure is not None
    height = figure.get_figheight() * 72
    for number, line in enumerate(lines):
        middle = 1 - (TITLE_HEIGHT + LEGEND_LINE * (number + 0.4)) / height
        for left, key, words in line:
            corner = ((left + 2) / WIDTH, middle - SWATCH / 2 / height)
            box = Rectangle(corner, SWATCH / WIDTH, SWATCH / height, transform=figure.transFigure, color=colors[key])
            box.set_linewidth(0)
            figure.add_artist(box)
            text = figure.text(
                (left + SWATCH + 7) / WIDTH, middle, words, color=MUTED, fontsize=FONT_SIZE, va="center_baseline"
            )
            text.set_parse_math(False)
