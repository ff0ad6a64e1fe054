"""The table of runs: its columns, the same in terminal, report and MLflow note, and its rows in the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from rampline.comparison.recommendation import is_scored_alike
from rampline.comparison.repeats import figure_of
from rampline.comparison.runs import FINISHED, Comparison, is_missing
from rampline.record.metric import Metric, Output, Source
from rampline.record.metrics import figure_of_run, find_metric, shown_in, unit_of
from rampline.record.units import NONE, write_count


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the table.

    Attributes:
        key: name of the figure in `Comparison.runs`.
        rank: importance; 0 is always shown, and a narrow terminal drops the highest first.
        numeric: whether it is aligned right.
        under: key of the column under whose figure the report writes this one, small, to save width.
        note: what the report writes there, with `{}` for the figure.
    """

    key: str
    title: str
    write: Callable[[Any], str]
    rank: int
    numeric: bool = True
    under: str = ""
    note: str = "{}"

    def text(self, row: Mapping[str, Any]) -> str:
        """The figure of one row as text, with its interval where it has one."""
        value = row.get(self.key)
        if is_missing(value):
            return NONE
        has_interval = self.key in row.get("intervals", ())
        return figure_of(row, self.key).write(self.write) if has_interval else self.write(value)


def make_columns(comparison: Comparison) -> list[Column]:
    """The columns of this comparison's table: cost and published figures (beside ours) only where there are any."""
    columns, published = _without_published(comparison), comparison.published_metrics
    keys = {column.key for column in columns}
    missing = [name for name in published if figure_of_run(name) not in keys and name in comparison.runs]
    ours = [_column(metric) for name in missing if (metric := find_metric(name))]
    return [*columns[:-1], *ours, *(_published(name) for name in published), columns[-1]]


def _without_published(comparison: Comparison) -> list[Column]:
    metrics = [metric for metric in shown_in(Output.TABLE, comparison.runs.columns) if _has_column(metric, comparison)]
    # Data without a test split is scored on the validation split: the heading must not claim otherwise.
    splits = set(comparison.runs["test_split"])
    scores = "test acc" if "validation" not in splits else "test/val acc" if "test" in splits else "val acc"
    complete = len(comparison.finished) == len(comparison.rows)
    # Where one was stopped, their epochs differ.
    has_stopped = any(row["stopped"] for row in comparison.rows)
    epochs = Column(key="epochs", title="epochs", write=write_count, rank=3)
    why = Column(key="stopped", title="stopped", write=str, rank=14, numeric=False, under="run", note="stopped {}")
    return [
        Column(key="run", title="run", write=str, rank=0, numeric=False),
        Column(key="strategy", title="strategy", write=_plain, rank=7, numeric=False),
        Column(key="engine", title="engine", write=str, rank=9, numeric=False, under="strategy"),
        Column(key="replicas", title="replicas", write=write_count, rank=3),
        Column(key="global_batch_size", title="batch", write=write_count, rank=9),
        Column(
            key="per_replica_batch_size",
            title="replica batch",
            write=write_count,
            rank=11,
            under="global_batch_size",
            note="{} / replica",
        ),
        *([epochs] if has_stopped else []),
        *(_column(metric, scores if metric.name == "test_accuracy" else "") for metric in metrics),
        *([why] if has_stopped else []),
        Column(key="status", title="status", write=str.lower, rank=12 if complete else 1, numeric=False, under="run"),
    ]


def _column(metric: Metric, title: str = "") -> Column:
    return Column(
        key=metric.name,
        title=title or metric.heading,
        write=metric.unit.write,
        rank=metric.rank,
        under=metric.under,
        note=metric.note,
    )


def _has_column(metric: Metric, comparison: Comparison) -> bool:
    if metric.sum_of:
        single = find_metric(metric.sum_of)
        chained = any(row["starts_from"] for row in comparison.rows)
        return chained and single is not None and _has_column(single, comparison)
    return not metric.is_optional or any(not is_missing(row[metric.name]) for row in comparison.rows)


def _published(name: str) -> Column:
    return Column(
        key=f"published_{name}",
        title=f"published {_plain(name)}",
        write=unit_of(name).write,
        rank=9,
        under=figure_of_run(name),
        note="publ. {}",
    )


def _plain(name: str) -> str:
    return name.replace("_", " ")


class Cell(NamedTuple):
    """One figure of a run: `notes` stand under it, small."""

    column: Column
    text: str
    notes: tuple[str, ...]
    is_best: bool


class RunRow(NamedTuple):
    """One run: its cells by column, and the published figures, each with the heading of ours."""

    run: str
    is_finished: bool
    cells: tuple[Cell, ...]
    published: tuple[str, ...]


def own_columns(columns: list[Column]) -> list[Column]:
    """The columns that the report shows as such: the others stand under one of them, or are published figures."""
    keys = {column.key for column in columns}
    return [column for column in columns if column.under not in keys and not _is_published(column)]


def make_run_rows(comparison: Comparison, columns: list[Column]) -> list[RunRow]:
    """A row for each run."""
    best = {metric.name: _best(comparison, metric) for metric in shown_in(Output.BEST_MARK)}
    shown, rows = own_columns(columns), []
    for row in comparison.rows:
        marked = (row["run"] in best.get(column.key, ()) for column in shown)
        cells = (
            Cell(column, column.text(row), _notes(column, columns, row), is_best)
            for column, is_best in zip(shown, marked, strict=True)
        )
        rows.append(RunRow(row["run"], row["status"] == FINISHED, tuple(cells), _published_figures(columns, row)))
    return rows


def _is_published(column: Column) -> bool:
    return column.key.startswith("published_")


def _notes(column: Column, columns: list[Column], row: Mapping[str, Any]) -> tuple[str, ...]:
    hidden = {"status"} if row["status"] == FINISHED else set()
    under = [other for other in columns if other.under == column.key and other.key not in hidden]
    return tuple(
        note.note.format(note.text(row)) for note in under if not is_missing(row[note.key]) and not _is_published(note)
    )


def _published_figures(columns: list[Column], row: Mapping[str, Any]) -> tuple[str, ...]:
    titles = {column.key: column.title for column in columns}
    shown = [column for column in columns if _is_published(column) and not is_missing(row[column.key])]
    return tuple(f"{column.text(row)} {titles.get(column.under, _plain(column.under))}" for column in shown)


def _best(comparison: Comparison, metric: Metric) -> set[str]:
    """The runs with the best figure, where there is a choice."""
    known = [row for row in comparison.finished if not is_missing(row[metric.name])]
    reference = next((row for row in known if row["run"] == comparison.reference), known[0] if known else None)
    figures = {row["run"]: row[metric.name] for row in known if reference and _is_comparable(row, metric, reference)}
    best = (min if metric.better == "lower" else max)(figures.values(), default=None)
    return {run for run, figure in figures.items() if figure == best} if len(figures) > 1 else set()


def _is_comparable(row: dict[str, Any], metric: Metric, reference: dict[str, Any]) -> bool:
    """Images/s of another machine than the reference's are no better or worse, nor are scores on other images."""
    if metric.source is Source.EVALUATION:
        return is_scored_alike(row, reference)
    return not is_missing(row["speedup"])
