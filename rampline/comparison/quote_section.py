"""The report's section on what was expected of the runs before they began, against what came out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rampline.comparison.runs import Comparison, is_missing
from rampline.comparison.section import ReportTable, Section
from rampline.record.metric import Source
from rampline.record.metrics import find_metric, from_source, unit_of
from rampline.record.units import NONE

QUOTED = "quoted_"
_TOLD = [metric for metric in from_source(Source.FORECAST) if find_metric(metric.name.removeprefix(QUOTED))]
STAGES = tuple(metric.name.removeprefix(QUOTED) for metric in _TOLD if metric.told_as.startswith("run."))
COLUMNS = tuple(name for metric in _TOLD if (name := metric.name.removeprefix(QUOTED)) not in STAGES)
ABOUT = (
    "Quoted from earlier runs with the same settings, else from the readings of rampline forecast, before the run "
    "began. How far quotes were off makes the next ones of this home wider or narrower."
)
NOTE = "Quoted, and what came out; in brackets by how much that differs from the quote."


def make_quote_section(comparison: Comparison) -> Section | None:
    """Quoted against actual, run by run and stage by stage; None where nothing was quoted."""
    quoted = [row for row in comparison.finished if not is_missing(row[f"{QUOTED}wall_seconds"])]
    if not quoted:
        return None
    tables = [_table("", quoted, COLUMNS), _table("Stages", quoted, STAGES)]
    return Section(
        id="quoted",
        title="Quoted against actual",
        sentences=tuple(_judge([row for row in quoted if _is_undisturbed(row)])),
        tables=tuple(table for table in tables if table),
        about=ABOUT,
    )


def _is_undisturbed(row: dict[str, Any]) -> bool:
    """Whether a run went on to its last epoch at its first start: a quote knows nothing of faults, rungs and stops."""
    is_started_once = is_missing(row["attempts"]) or row["attempts"] == 1  # earlier versions told no attempts
    is_whole = is_started_once and len(row["first_epochs"]) < 2 and not row["workers_of_attempts"]
    return is_whole and not row["stopped"] and len(row["machines"]) == 1


def _judge(quoted: list[dict[str, Any]]) -> Iterator[str]:
    """How good the quotes of undisturbed runs were."""
    if not quoted:
        return
    ratios = [(_ratio(row, "wall_seconds"), row[f"{QUOTED}within"]) for row in quoted]
    within = [ratio for ratio, share in ratios if max(ratio, 1 / ratio) <= 1 + share]
    total, was = (sum(row[name] for row in quoted) for name in (f"{QUOTED}wall_seconds", "wall_seconds"))
    write = unit_of("wall_seconds").write
    yield (
        f"{write(total)} s were quoted for {'1 run' if len(quoted) == 1 else f'{len(quoted)} runs'}, "
        f"{write(was)} s came out ({was / total - 1:+.0%}); "
        f"{len(within)} of {len(quoted)} lie in the interval of their quote."
    ).replace("%", " %")


def _table(title: str, quoted: list[dict[str, Any]], metrics: tuple[str, ...]) -> ReportTable | None:
    told = [m for m in metrics if any(not is_missing(row[m]) and not is_missing(row[QUOTED + m]) for row in quoted)]
    if not told:
        return None
    headings = [metric.heading for metric in map(find_metric, told) if metric]
    rows = tuple((row["run"], *(_cell(row, metric) for metric in told)) for row in quoted)
    return ReportTable(title=title, head=("run", *headings), rows=rows, note=NOTE)


def _cell(row: dict[str, Any], metric: str) -> str:
    if is_missing(row[metric]) or is_missing(row[QUOTED + metric]):
        return NONE
    write = unit_of(metric).write
    change = f"{_ratio(row, metric) - 1:+.0%}".replace("%", " %") if row[QUOTED + metric] else NONE
    return f"{write(row[QUOTED + metric])} \N{RIGHTWARDS ARROW} {write(row[metric])} ({change})"


def _ratio(row: dict[str, Any], metric: str) -> float:
    return row[metric] / row[QUOTED + metric]
