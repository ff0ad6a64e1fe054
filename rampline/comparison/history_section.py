"""The report's section on the history of a study: what has changed, figures and charts over the executions before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rampline.comparison.charts import axis, curve_chart, drawn_runs, points, run_lines, style_runs
from rampline.comparison.history import FEWEST, LASTING, State, Trend
from rampline.comparison.runs import Comparison
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.record.units import ACCURACY, NONE

HEAD = ("run", "figure", "newest", "usual", "as usual from", "to", "executions", "trend", "judged")
BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 30
WIDE = 10  # times what is usual
ABOUT = (
    "Compared are the executions in which a run had the same settings, data and machine. A figure is as usual while "
    "it, and the mean of the last three, lie where Student's t expects further figures; that an execution in which "
    "nothing has changed is told of has a chance of 1 in 100, over all its figures. Speeds and costs are compared by "
    "factors. Dashes: there are too few executions, or they are too far apart for a range."
)


def make_history_section(comparison: Comparison) -> Section | None:
    """What became of the figures since the executions before; None for the first execution."""
    trends = comparison.trends
    if not trends:
        return None
    return Section(
        id="history",
        title="History",
        sentences=tuple(list_changes(trends)) or (_nothing(trends),),
        tables=(_table(trends),),
        charts=tuple(_charts(comparison)),
        about=ABOUT,
    )


def list_changes(trends: Sequence[Trend]) -> list[str]:
    """What has changed with the newest execution, a sentence each."""
    return [_tell_change(trend) for trend in trends if trend.has_changed]


def _tell_change(trend: Trend) -> str:
    found, write = trend.judgement, trend.metric.unit.write
    newest = f"{write(found.value)}{f' on average of the last {LASTING} executions' if found.is_mean else ''}"
    explained = " to ".join(_range(trend))
    return (
        f"{trend.run}: {trend.metric.heading} {newest}; usually {write(found.usual)}, "
        f"and the spread of {found.compared} executions explains {explained}."
    )


def _nothing(trends: Sequence[Trend]) -> str:
    if all(trend.judgement.state is State.TOO_FEW for trend in trends):
        return f"Too little history: {FEWEST} executions with the same settings, data and machine are needed."
    return "Nothing has changed since the execution before that the spread of the figures does not explain."


def _table(trends: Sequence[Trend]) -> ReportTable:
    numeric = tuple(name in HEAD[2:7] for name in HEAD)
    return ReportTable(title="", head=HEAD, rows=tuple(map(_row, trends)), numeric=numeric)


def _row(trend: Trend) -> tuple[str, ...]:
    found, write = trend.judgement, trend.metric.unit.write
    usual = write(found.usual) if found.compared else NONE
    newest, bars = write(trend.values[-1]), sparkline(trend.values[-MOST_BARS:])
    return (
        *(trend.run, trend.metric.heading, newest, usual, *_range(trend)),
        *(str(found.compared), bars, str(found.state)),
    )


def _range(trend: Trend) -> tuple[str, str]:
    """Between which the figure would be as usual; dashes where that says nothing."""
    found, unit = trend.judgement, trend.metric.unit
    if found.state is State.TOO_FEW or found.high > WIDE * found.usual:
        return NONE, NONE
    low, high = (max(found.low, 0.0), min(found.high, 1.0)) if unit is ACCURACY else (found.low, found.high)
    return unit.write(low), unit.write(high)


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from the smallest to the greatest of them."""
    low, high = min(values), max(values)
    return "".join(
        BARS[round((len(BARS) - 1) * (value - low) / (high - low))] if high > low else "▄" for value in values
    )


def _charts(comparison: Comparison) -> Iterator[Chart]:
    styles = style_runs(drawn_runs(comparison))
    drawn = [trend for trend in comparison.trends if trend.run in styles and len(trend.values) > 1]
    for metric in dict.fromkeys(trend.metric.name for trend in drawn):
        lines = [trend for trend in drawn if trend.metric.name == metric]
        rows = [
            {"run": trend.run, "color": styles[trend.run].color, "day": day, "value": value}
            for trend in lines
            for day, value in zip(trend.days, trend.values, strict=True)
        ]
        heading, x = lines[0].metric.heading, axis("day", "days after this execution")
        y = axis("value", heading, scale={"zero": False}, format="~g")
        spec = curve_chart(rows, x, y, run_lines(rows, x, y, styles), points(x, y))
        yield Chart(title=heading.capitalize(), caption="A point for each execution.", spec=spec)
