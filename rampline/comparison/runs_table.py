"""The table of the runs in the report: figures, what belongs to them beneath, and a column of other people's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rampline.comparison.columns import Column, is_missing
from rampline.comparison.scaling import FINISHED
from rampline.comparison.table import Comparison
from rampline.record.metrics import Metric, Output, shown_in


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One figure of a run: `notes` stand under it, small."""

    column: Column
    text: str
    notes: tuple[str, ...]
    is_best: bool


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run: its cells by column, and the published figures, each with the heading of ours."""

    run: str
    is_reference: bool
    is_finished: bool
    cells: tuple[Cell, ...]
    published: tuple[str, ...]


def own_columns(columns: list[Column]) -> list[Column]:
    """The columns that the report shows as such: the others stand under one of them, or are published figures."""
    return [column for column in columns if not _is_note(column, columns) and not _is_published(column)]


def make_run_rows(comparison: Comparison, columns: list[Column]) -> list[RunRow]:
    """A row for each run."""
    best = {metric.name: _best(comparison, metric) for metric in shown_in(Output.BEST_MARK)}
    rows = []
    for row in comparison.rows:
        finished = row["status"] == FINISHED
        cells = tuple(
            Cell(
                column=column,
                text=column.text(row),
                notes=_notes(column, columns, row),
                is_best=finished and column.key in best and row[column.key] == best[column.key],
            )
            for column in own_columns(columns)
        )
        rows.append(
            RunRow(
                run=row["run"],
                is_reference=row["run"] == comparison.reference,
                is_finished=finished,
                cells=cells,
                published=_published(columns, row),
            )
        )
    return rows


def _is_note(column: Column, columns: list[Column]) -> bool:
    return any(other.key == column.under for other in columns)


def _is_published(column: Column) -> bool:
    return column.key.startswith("published_")


def _notes(column: Column, columns: list[Column], row: Mapping[str, Any]) -> tuple[str, ...]:
    hidden = {"status"} if row["status"] == FINISHED else set()
    under = [other for other in columns if other.under == column.key and other.key not in hidden]
    return tuple(
        note.note.format(note.text(row)) for note in under if not is_missing(row[note.key]) and not _is_published(note)
    )


def _published(columns: list[Column], row: Mapping[str, Any]) -> tuple[str, ...]:
    titles = {column.key: column.title for column in columns}
    shown = [column for column in columns if _is_published(column) and not is_missing(row[column.key])]
    return tuple(f"{column.text(row)} {titles.get(column.under, column.under)}" for column in shown)


def _best(comparison: Comparison, metric: Metric) -> float | None:
    """The best figure, where there is a choice."""
    key = metric.name
    # Images/s of another machine than the reference's are no better or worse.
    rows = [row for row in comparison.finished if key != "images_per_second" or not is_missing(row["speedup"])]
    figures = [row[key] for row in rows if not is_missing(row[key])]
    choose = min if metric.better == "lower" else max
    return choose(figures) if len(figures) > 1 else None
