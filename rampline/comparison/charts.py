"""How the report draws: colours of runs, and its charts as Vega-Lite specifications.

Vega-Lite (https://vega.github.io/vega-lite/docs/) draws them where the page is opened: they zoom, and the pointer shows
values. Colours are CSS variables, so that one chart serves both colour schemes and paper. A run has the same colour in
every chart and in the table, told apart by the colour-blind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from rampline.comparison.runs import Comparison, is_missing
from rampline.record.metric import Output
from rampline.record.metrics import shown_in
from rampline.record.units import write_quantity

Spec = dict[str, Any]
Row = Mapping[str, Any]
# After Okabe and Ito (2008), darkened for white paper and lightened for a dark screen.
LIGHT = ("#0072b2", "#d55e00", "#00875f", "#b0508a", "#b98100", "#4f9fd8", "#6a6a6a", "#7d5a2b")
DARK = ("#4fb0ea", "#ff8b4a", "#33cfa0", "#e594c6", "#f2bf3f", "#a5d5fa", "#b4b4b4", "#cda878")
# Parts of a whole; in other hues than runs where both stand in one report. The last is for the rest.
LIGHT_PARTS = ("#3a6ea5", "#24806a", "#a5632c", "#8a5aa8", "#5a7a26", "#a84a5c", "#6b737b")
DARK_PARTS = ("#7db2ea", "#5fcfb4", "#e8a56b", "#c79be6", "#a9cc6a", "#f08ba0", "#9aa3ab")
DASHES = ((), (5, 2), (1.5, 1.5), (5, 1.5, 1.5, 1.5))
# Runs that a chart can tell apart.
MOST_STYLES = len(LIGHT) * len(DASHES)
SHARED_DASH = 5  # length of one run's part of a line that several runs share, in pixels
ROW_HEIGHT = 30  # pixels
INK, MUTED, RULE, PAPER = "var(--ink)", "var(--muted)", "var(--rule)", "var(--paper)"
# That of the page: Vega measures words in it.
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
# What all charts of the page look like.
CONFIG: Spec = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "domainColor": RULE,
        "gridColor": RULE,
        "labelColor": MUTED,
        "labelFontSize": 11,
        "labelOverlap": "greedy",
        "tickSize": 0,
        "labelPadding": 6,
        "titleColor": MUTED,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
    },
    "axisX": {"tickCount": 5},
    "axisY": {
        "tickCount": 5,
        "domain": False,
        "titleAngle": 0,
        "titleAlign": "left",
        "titleAnchor": "end",
        "titleBaseline": "bottom",
        "titleY": -12,
    },
    "text": {"fill": INK, "fontSize": 11},
    "rule": {"stroke": MUTED},
}
# Drag and wheel alone belong to the page that is read.
ZOOM: Spec = {
    "name": "zoom",
    "bind": "scales",
    "select": {
        "type": "interval",
        "zoom": "wheel![event.shiftKey]",
        "translate": "[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!",
    },
}
# The middle of a long name is cut: the ends of a grid's names differ.
CUT = "length(datum.label) > 20 ? slice(datum.label, 0, 9) + '…' + slice(datum.label, -10) : datum.label"


@dataclass(frozen=True, kw_only=True)
class RunStyle:
    """How one run is drawn: a CSS colour; `dashes`, in pixels, tell apart what shares a colour."""

    color: str
    dashes: tuple[float, ...]

    @property
    def dash_array(self) -> str:
        """`dashes` as SVG writes them; `none` for a solid line."""
        return " ".join(f"{length:g}" for length in self.dashes) or "none"


def style_runs(runs: Iterable[str]) -> dict[str, RunStyle]:
    """A style for each run: colours in order, then the same colours with other dashes."""
    return {
        run: RunStyle(color=f"var(--run-{number % len(LIGHT)})", dashes=DASHES[number // len(LIGHT) % len(DASHES)])
        for number, run in enumerate(runs)
    }


def declare_colors(runs: Sequence[str], parts: Sequence[str]) -> str:
    """The colours of runs and of parts as declarations of CSS variables, for one colour scheme."""
    named = [(f"--run-{number}", color) for number, color in enumerate(runs)]
    named += [(f"--part-{number}", color) for number, color in enumerate(parts)]
    return " ".join(f"{name}: {color};" for name, color in named)


def axis(field: str, title: str | None, *, kind: str = "quantitative", scale: Spec | None = None, **more: Any) -> Spec:
    """An encoding of a position; `more` goes to its axis."""
    return {"field": field, "type": kind, "title": title, "scale": scale or {}, "axis": more}


def run_axis() -> Spec:
    """One row per run (or per `run` of the rows), in their order, the first on top."""
    return axis("run", None, kind="nominal", labelExpr=CUT, labelColor=INK, labelLimit=0) | {"sort": None}


# A row's field `color` is a CSS colour; which is which stands above the charts.
COLOR: Spec = {"field": "color", "type": "nominal", "scale": None, "legend": None}


def tooltip(**fields: str) -> list[Spec]:
    """What the pointer shows: words by field; figures keep four digits."""
    return [{"field": "run", "title": "run"}] + [
        {"field": field, "title": words, "format": ".4~g", "type": "quantitative"} for field, words in fields.items()
    ]


def curve_chart(rows: Sequence[Row], x: Spec, y: Spec, *layers: Spec) -> Spec:
    """Layers over `x` and `y`, from `axis`, of rows with these fields and a `color`; a layer may have its own rows."""
    position = {"x": x, "y": y, "color": COLOR}
    return {"data": {"values": list(rows)}, "height": 210, "encoding": position, "layer": list(layers)}


def points(*encoded: Spec) -> Spec:
    """A layer: a point for each row; the pointer shows its fields that are `encoded` by an `axis`, and it zooms."""
    return {
        "params": [ZOOM],
        "mark": {"type": "point", "filled": True, "opacity": 1, "size": 28, "clip": True},
        "encoding": {"tooltip": tooltip(**{each["field"]: each["title"] for each in encoded})},
    }


def range_areas(y: Spec) -> Spec:
    """A layer: from `low` to `high` of each run whose rows have them."""
    return {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.18, "clip": True},
        "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "detail": {"field": "run"}},
    }


def run_lines(rows: Sequence[Row], x: Spec, y: Spec, styles: Mapping[str, RunStyle]) -> Spec:
    """A layer: a line for each run; where several have the very same line, their colours take turns along it."""
    dashes = _dashes(rows, x["field"], y["field"], styles)
    scale = {"domain": list(dashes), "range": list(dashes.values())}
    return {
        "mark": {"type": "line", "strokeWidth": 1.7, "strokeCap": "butt", "clip": True},
        "encoding": {"strokeDash": {"field": "run", "type": "nominal", "legend": None, "scale": scale}},
    }


def _dashes(rows: Sequence[Row], x: str, y: str, styles: Mapping[str, RunStyle]) -> dict[str, list[float]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        lines.setdefault(row["run"], []).append((row[x], row[y]))
    dashes: dict[str, list[float]] = {}
    for run, line in lines.items():
        sharing = [other for other in lines if lines[other] == line]
        place = sharing.index(run)
        own = list(styles[run].dashes) or [1, 0]
        # Later lines lie on earlier ones: each leaves a piece of every one below to be seen.
        dashes[run] = [SHARED_DASH * (len(sharing) - place), SHARED_DASH * place] if len(sharing) > 1 else own
    return dashes


def row_chart(rows: Sequence[Row], x: Spec, *layers: Spec) -> Spec:
    """One row of the chart per run with these layers; rows have a `color`."""
    return {
        "data": {"values": list(rows)},
        "height": ROW_HEIGHT * len({row["run"] for row in rows}),
        "encoding": {"y": run_axis(), "x": x, "color": COLOR},
        "layer": list(layers),
    }


def label(field: str, text: str) -> Spec:
    """A layer: the words in the field `text` at the right of where `field` is."""
    return {
        "mark": {"type": "text", "align": "left", "dx": 8},
        "encoding": {"x": {"field": field, "type": "quantitative"}, "text": {"field": text}, "color": {"value": INK}},
    }


def dot(field: str, shown: Sequence[Spec], *, filled: bool) -> Spec:
    """A layer: a filled or an open dot of the run's colour."""
    mark = {"type": "point", "size": 55, "strokeWidth": 1.6, "filled": filled, "opacity": 1}
    position = {"x": {"field": field, "type": "quantitative"}}
    return {"mark": mark if filled else {**mark, "fill": PAPER}, "encoding": {**position, "tooltip": list(shown)}}


def dumbbell(rows: Sequence[Row], opened: str, filled: str, title: str, shown: Sequence[Spec]) -> Spec:
    """An open and a filled dot for each run, joined, with the words in its field `text`."""
    values = [row[field] for row in rows for field in (opened, filled) if field in row]
    room = max(0.08 * (max(values) - min(values)), 0.002)
    x = axis(filled, title, scale={"domain": [min(values) - room, max(values) + 4 * room], "nice": False})
    joined: Spec = {
        "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.6},
        "encoding": {"x": {"field": opened, "type": "quantitative"}, "x2": {"field": filled}},
    }
    ends = [{**row, "end": max(row[field] for field in (opened, filled) if field in row)} for row in rows]
    dots = (dot(opened, shown, filled=False), dot(filled, shown, filled=True))
    return row_chart(ends, x, joined, *dots, label("end", "text"))


def stacked_bars(
    bars: Sequence[tuple[str, Mapping[str, float]]], parts: Sequence[tuple[str, str]], title: str
) -> tuple[Spec, tuple[tuple[str, str], ...]]:
    """A chart of bars made of parts, with their totals; and its legend: (words, CSS colour) of each part in it.

    Args:
        bars: at least one: name of a run, and its parts by key, all in the unit that `title` names; one that is
            missing, not a number or below 0 (the noise of a difference) has no piece in the bar. The total is that of
            all parts.
        parts: key and words of each part, in the order they stand in the bar; the last is the rest, in grey.
    """
    colors = [f"var(--part-{place})" for place in (*range(len(parts) - 1), len(LIGHT_PARTS) - 1)]
    pieces = [
        {"run": run, "part": words, "place": place, "value": float(values[key]), "color": colors[place]}
        for run, values in bars
        for place, (key, words) in enumerate(parts)
        if not is_missing(values.get(key)) and values[key] > 0
    ]
    totals = []
    for run, values in bars:
        end = sum(piece["value"] for piece in pieces if piece["run"] == run)
        whole = sum(values[key] for key, _ in parts if not is_missing(values.get(key)))
        totals.append({"run": run, "end": end, "text": write_quantity(whole)})
    x = axis("value", title, scale={"domainMax": 1.15 * max(row["end"] for row in totals) or 1}) | {"stack": "zero"}
    bar: Spec = {
        "data": {"values": pieces},
        "mark": {"type": "bar", "stroke": PAPER, "strokeWidth": 0.6, "height": {"band": 0.6}},
        "encoding": {
            "x": x,
            "order": {"field": "place"},
            "color": COLOR,
            "tooltip": [{"field": "run"}, {"field": "part"}, {"field": "value", "title": title, "format": ".3~g"}],
        },
    }
    total: Spec = {"data": {"values": totals}, **label("end", "text")}
    spec = {"height": ROW_HEIGHT * len(bars), "encoding": {"y": run_axis()}, "layer": [bar, total]}
    there = {piece["part"] for piece in pieces}
    return spec, tuple((words, color) for (_, words), color in zip(parts, colors, strict=True) if words in there)


def finite(row: Row) -> dict[str, Any]:
    """The row without what is missing: JSON has no NaN."""
    return {key: value for key, value in row.items() if not isinstance(value, float) or math.isfinite(value)}


def drawn_runs(comparison: Comparison) -> list[str]:
    """At most `MOST_STYLES` of the runs, in their order: more lines no reader can tell apart.

    The reference, then in turn the fastest and the most accurate of those that finished, then the first ones.
    """
    runs = comparison.runs["run"].tolist()
    rankings = [[row["run"] for row in comparison.ranked(metric.name)] for metric in shown_in(Output.CHART_CHOICE)]
    in_turn = chain.from_iterable(zip_longest(*rankings))
    chosen = [run for run in dict.fromkeys([comparison.reference, *in_turn, *runs]) if run][:MOST_STYLES]
    return [run for run in runs if run in chosen]


def describe_drawn(comparison: Comparison) -> str:
    """What a reader of the charts must know where they leave runs out; else empty."""
    if len(comparison.runs) <= MOST_STYLES:
        return ""
    return (
        f"The charts of this page show {MOST_STYLES} of the {len(comparison.runs)} runs: the reference, and the "
        "fastest and most accurate ones. The tables have all of them."
    )
