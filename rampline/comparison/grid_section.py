"""The report's section on grids: throughput and accuracy by batch size and number of replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rampline.comparison.repeats import figure_of
from rampline.comparison.runs import Comparison, comparable_settings, is_missing
from rampline.comparison.section import ReportTable, Section
from rampline.record.units import NONE, write_accuracy, write_count, write_number_of, write_quantity

BATCHES = {"global_batch_size": "global batch", "per_replica_batch_size": "batch per replica"}
# What is in the cells: by name the words, and how a figure is written.
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "images_per_second": ("Images/s", write_quantity),
    "test_accuracy": ("Accuracy on the scored images", write_accuracy),
}
Row = dict[str, Any]


def make_grid_section(comparison: Comparison) -> Section | None:
    """Matrices of batch by replicas; None unless some runs differ in both, and are alike in data and model."""
    tables = [table for rows in _alike(comparison) for table in _matrices(rows)]
    if not tables:
        return None
    about = (
        "Of several runs with the same batch and replicas the cell has the one of the highest throughput. Runs of one "
        "matrix have the same engine, data, model, precision and input pipeline."
    )
    return Section(id="grid", title="Batch and replicas", tables=tuple(tables), about=about)


def _alike(comparison: Comparison) -> list[list[Row]]:
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for row in comparison.finished:
        if not any(map(is_missing, (row["replicas"], row["images_per_second"], *(row[batch] for batch in BATCHES)))):
            alike.setdefault((row["engine"], *comparable_settings(row)), []).append(row)
    return list(alike.values())


def _matrices(rows: list[Row]) -> list[ReportTable]:
    replicas = sorted({int(row["replicas"]) for row in rows})
    # Of the two ways to say what a batch is, the one that leaves fewer cells empty.
    batch = min(BATCHES, key=lambda name: len({row[name] for row in rows}))
    sizes = sorted({int(row[batch]) for row in rows})
    if len(replicas) < 2 or len(sizes) < 2:
        return []
    fastest = {(row[batch], row["replicas"]): row for row in sorted(rows, key=lambda row: row["images_per_second"])}
    return [
        ReportTable(
            title=words,
            head=(BATCHES[batch], *(write_number_of("replica", count) for count in replicas)),
            rows=tuple(
                (write_count(size), *(_cell(fastest.get((size, count)), name) for count in replicas)) for size in sizes
            ),
            numeric=(True,) * (1 + len(replicas)),
        )
        for name, (words, _) in FIGURES.items()
        if any(not is_missing(row[name]) for row in fastest.values())
    ]


def _cell(row: Row | None, name: str) -> str:
    return NONE if row is None or is_missing(row[name]) else figure_of(row, name).write(FIGURES[name][1])
