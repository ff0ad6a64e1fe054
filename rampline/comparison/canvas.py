"""How the report draws: colours, empty charts in its style, stacked bars, and which of many runs a chart shows.

Charts are drawn in placeholder colours that become CSS variables, so that one SVG serves both colour schemes. A run has
the same colour in every chart and in the table, told apart by the colour-blind, in light and dark.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rampline.comparison.runs import Comparison, is_missing
from rampline.record.metrics import Metric, Output, shown_in
from rampline.record.units import write_quantity

# After Okabe and Ito (2008), darkened for white paper and lightened for a dark screen.
LIGHT = ("#0072b2", "#d55e00", "#00875f", "#b0508a", "#b98100", "#4f9fd8", "#6a6a6a", "#7d5a2b")
DARK = ("#4fb0ea", "#ff8b4a", "#33cfa0", "#e594c6", "#f2bf3f", "#a5d5fa", "#b4b4b4", "#cda878")
# Parts of a whole; in other hues than runs where both stand in one report. The last is for the rest.
LIGHT_PARTS = ("#3a6ea5", "#24806a", "#a5632c", "#8a5aa8", "#5a7a26", "#a84a5c", "#6b737b")
DARK_PARTS = ("#7db2ea", "#5fcfb4", "#e8a56b", "#c79be6", "#a9cc6a", "#f08ba0", "#9aa3ab")
DASHES = ((), (5, 2), (1.5, 1.5), (5, 1.5, 1.5, 1.5))
# Runs that a chart can tell apart.
MOST_STYLES = len(LIGHT) * len(DASHES)
INK, MUTED, RULE, PAPER = "#010203", "#020304", "#030405", "#040506"
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)"}
_RUNS = tuple(f"#0a0b{number:02x}" for number in range(len(LIGHT)))
_PARTS = tuple(f"#0c0d{number:02x}" for number in range(len(LIGHT_PARTS)))
WIDTH = 430  # in SVG units: close to a phone's width, so that text keeps its size there
FONT_SIZE = 11
TITLE_HEIGHT = 26  # SVG units
ROW_HEIGHT = 34  # SVG units
LABEL_LENGTH = 18
POINTS_PER_INCH = 72
# Its first use on a machine announces the font cache, which nobody can act on.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
BAR_HEIGHT = 0.6  # of a row
LEGEND_LINE = 17  # SVG units
CHARACTER = 6.7  # width of one in SVG units
SWATCH = 9


@dataclass(frozen=True, kw_only=True)
class RunStyle:
    """How one run is drawn: `color` in charts, `variable` in HTML; `dashes` tell apart what shares a colour."""

    color: str
    variable: str
    dashes: tuple[float, ...]

    @property
    def dash_array(self) -> str:
        """`dashes` as SVG writes them; `none` for a solid line."""
        return " ".join(f"{length:g}" for length in self.dashes) or "none"


def style_runs(runs: list[str]) -> dict[str, RunStyle]:
    """A style for each run: colours in order, then the same colours with other dashes."""
    return {run: _style(number) for number, run in enumerate(runs)}


def _style(number: int) -> RunStyle:
    color = number % len(LIGHT)
    dashes = DASHES[number // len(LIGHT) % len(DASHES)]
    return RunStyle(color=_RUNS[color], variable=f"var(--run-{color})", dashes=dashes)


def color_parts(count: int) -> list[str]:
    """Colours for the parts of a whole, in charts: the last one is grey, for the rest.

    Raises:
        ValueError: if there are more parts than colours.
    """
    if not 1 <= count <= len(_PARTS):
        raise ValueError(f"{count} parts of a whole: must be 1 to {len(_PARTS)}")
    return [*_PARTS[: count - 1], _PARTS[-1]]


def declare_colors(runs: Sequence[str], parts: Sequence[str]) -> str:
    """The colours of runs and of parts as declarations of CSS variables, for one colour scheme."""
    named = [(f"--run-{number}", color) for number, color in enumerate(runs)]
    named += [(f"--part-{number}", color) for number, color in enumerate(parts)]
    return " ".join(f"{name}: {color};" for name, color in named)


def use_variables(svg: str) -> str:
    """The SVG with CSS variables in place of the placeholder colours."""
    for number, color in enumerate(_RUNS):
        svg = svg.replace(color, f"var(--run-{number})")
    for number, color in enumerate(_PARTS):
        svg = svg.replace(color, f"var(--part-{number})")
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, variable)
    return svg


def make_axes(height: float, *, left: float, right: float, title: str, above: float = 0) -> Axes:
    """Axes of a chart of `WIDTH` by `height` with margins in SVG units; `title` names the quantity above the axis.

    `above` is room between title and axes, for a legend.
    """
    figure = Figure(figsize=(WIDTH / POINTS_PER_INCH, height / POINTS_PER_INCH))
    FigureCanvasSVG(figure)
    bottom, top = 40, TITLE_HEIGHT + above
    box = (left / WIDTH, bottom / height, (WIDTH - left - right) / WIDTH, (height - bottom - top) / height)
    axes = figure.add_axes(box)
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    figure.text(2 / WIDTH, 1 - 12 / height, title, color=MUTED, fontsize=FONT_SIZE, va="center")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(RULE)
    axes.tick_params(colors=MUTED, labelsize=FONT_SIZE, length=0, pad=5)
    axes.xaxis.label.set(color=MUTED, fontsize=FONT_SIZE)
    return axes


def make_row_axes(names: Sequence[str], title: str, *, right: float, above: float = 0) -> Axes:
    """Axes with one row per name, the first on top; margins and `above` as in `make_axes`."""
    left = min(12 + 6.2 * max(len(shorten(name)) for name in names), WIDTH / 2)
    axes = make_axes(66 + above + ROW_HEIGHT * len(names), left=left, right=right, title=title, above=above)
    grid(axes, "x")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    axes.set_yticks(range(len(names)), [shorten(name) for name in names], parse_math=False, color=INK)
    return axes


def grid(axes: Axes, along: str) -> None:
    """Light grid lines at the ticks of one axis, `x` or `y`."""
    axes.set_axisbelow(True)
    axes.grid(axis="x" if along == "x" else "y", color=RULE, linewidth=0.8)


def shorten(name: str) -> str:
    """A run's name short enough to stand beside its line; cut in the middle, for the ends of a grid's names differ."""
    if len(name) <= LABEL_LENGTH:
        return name
    return f"{name[: LABEL_LENGTH // 2 - 1]}…{name[-LABEL_LENGTH // 2 :]}"


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """`positions` moved as little as needed to lie at least `gap` apart, inside `low`…`high` where they fit."""
    # Of equal ones the first goes highest, so that runs with the same curve are named in their order from the top.
    order = sorted(range(len(positions)), key=lambda index: (positions[index], -index))
    moved = [positions[index] for index in order]
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    if moved and moved[-1] > high:
        moved[-1] = max(high, low + gap * (len(moved) - 1))
        for index in range(len(moved) - 2, -1, -1):
            moved[index] = min(moved[index], moved[index + 1] - gap)
    result = [0.0] * len(positions)
    for index, position in zip(order, moved, strict=True):
        result[index] = position
    return result


def write_svg(axes: Axes, name: str) -> str:
    """The chart as an `<svg>` element to stand inside HTML: no fixed size, its own ids, colours by CSS variables."""
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="[a-z0-9.]+_\d+"', "", svg)  # numbered names, the same in every chart; nothing refers to them
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None
    svg = re.sub(r"<svg[^>]*>", f'<svg {view.group()} aria-hidden="true">', svg, count=1)
    return use_variables(svg).strip()


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


def pick_drawn(comparison: Comparison) -> Comparison:
    """The comparison of at most `MOST_STYLES` of its runs, in their order: more lines no reader can tell apart.

    The reference, then in turn the fastest and the most accurate of those that finished, then the first ones.
    """
    if len(comparison.runs) <= MOST_STYLES:
        return comparison
    rankings = [_rank(comparison, metric) for metric in shown_in(Output.CHART_CHOICE)]
    in_turn = (run for place in zip_longest(*rankings) for run in place if run is not None)
    order = dict.fromkeys(chain([comparison.reference], in_turn, comparison.runs["run"].tolist()))
    chosen = [run for run in order if run][:MOST_STYLES]
    return dataclasses.replace(
        comparison,
        runs=_only(comparison.runs, chosen),
        epochs=_only(comparison.epochs, chosen),
        system=_only(comparison.system, chosen),
    )


def describe_drawn(comparison: Comparison) -> str:
    """What a reader of the charts must know where they leave runs out; else empty."""
    if len(comparison.runs) <= MOST_STYLES:
        return ""
    return (
        f"The charts of this page show {MOST_STYLES} of the {len(comparison.runs)} runs: the reference, and the "
        "fastest and most accurate ones. The tables have all of them."
    )


def _rank(comparison: Comparison, metric: Metric) -> list[str]:
    rows: list[dict[str, Any]] = [row for row in comparison.finished if not is_missing(row[metric.name])]
    ranked = sorted(rows, key=lambda row: row[metric.name], reverse=metric.better == "higher")
    return [row["run"] for row in ranked]


def _only(table: pd.DataFrame, runs: list[str]) -> pd.DataFrame:
    return pd.DataFrame(table[table["run"].isin(runs)]).reset_index(drop=True)
