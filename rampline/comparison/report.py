"""`report.html` and `comparison.csv`: one execution of a study as a page that needs nothing else, and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rampline.comparison.columns import NONE, Column, is_missing, make_columns
from rampline.comparison.figures import make_charts
from rampline.comparison.palette import DARK, LIGHT, style_runs
from rampline.comparison.scaling import FINISHED
from rampline.comparison.sentences import list_remarks, summarise_accuracy, summarise_scaling, summarise_speed
from rampline.comparison.table import Comparison
from rampline.files import write_text

TEMPLATES = Path(__file__).parent / "templates"
DATA_ROWS = 40  # longer tables of the data report are cut, with a line that says so


@dataclass(frozen=True, kw_only=True)
class ComparisonFiles:
    """What `write_comparison` has written."""

    csv: Path
    report: Path


def write_comparison(
    comparison: Comparison, directory: Path, *, data_tables: Mapping[str, pd.DataFrame] | None = None
) -> ComparisonFiles:
    """Write `comparison.csv` (all figures, full precision) and `report.html` into `directory`.

    Args:
        comparison: what to write.
        directory: made if it is not there; older files of these names are replaced.
        data_tables: tables of the data report by heading, such as `{"Examples per class": …}`; empty ones are named.
    """
    files = ComparisonFiles(csv=directory / "comparison.csv", report=directory / "report.html")
    write_text(files.csv, comparison.csv_table.to_csv(index=False))
    write_text(files.report, render_report(comparison, data_tables=data_tables))
    return files


def render_report(comparison: Comparison, *, data_tables: Mapping[str, pd.DataFrame] | None = None) -> str:
    """The report as one HTML document without any reference to another file or host."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    columns = make_columns(comparison)
    return templates.get_template("report.html.j2").render(
        comparison=comparison,
        css=Markup((TEMPLATES / "report.css").read_text()),
        light=LIGHT,
        dark=DARK,
        headline=summarise_speed(comparison),
        sentences=[text for text in (summarise_accuracy(comparison), summarise_scaling(comparison)) if text],
        remarks=list_remarks(comparison),
        columns=[column for column in columns if not _is_note(column, columns)],
        rows=_rows(comparison, columns),
        styles=style_runs(comparison.runs["run"].tolist()),
        charts=[(chart, Markup(chart.svg)) for chart in make_charts(comparison)],
        data_tables=[_data_table(title, table) for title, table in (data_tables or {}).items()],
        environment=_environment(comparison.environment),
    )


def _rows(comparison: Comparison, columns: list[Column]) -> list[dict[str, Any]]:
    """Every run's cells: a figure, the notes under it, and whether it is the best of all."""
    best = {key: _best(comparison, key) for key in ("test_accuracy", "images_per_second")}
    shown = [column for column in columns if not _is_note(column, columns)]
    rows = []
    for row in comparison.rows:
        finished, reference = row["status"] == FINISHED, row["run"] == comparison.reference
        cells = [
            (
                column,
                column.text(row),
                _notes(column, columns, row),
                finished and column.key in best and row[column.key] == best[column.key],
            )
            for column in shown
        ]
        rows.append({"run": row["run"], "is_reference": reference, "is_finished": finished, "cells": cells})
    return rows


def _is_note(column: Column, columns: list[Column]) -> bool:
    return any(other.key == column.under for other in columns)


def _notes(column: Column, columns: list[Column], row: Mapping[str, Any]) -> list[str]:
    notes = [other for other in columns if other.under == column.key and not is_missing(row[other.key])]
    hidden = {"status"} if row["status"] == FINISHED else set()
    return [note.note.format(note.text(row)) for note in notes if note.key not in hidden]


def _best(comparison: Comparison, key: str) -> float | None:
    """The highest figure, where there is a choice."""
    figures = [row[key] for row in comparison.finished if not is_missing(row[key])]
    return max(figures) if len(figures) > 1 else None


def _data_table(title: str, table: pd.DataFrame) -> dict[str, Any]:
    shown = table.head(DATA_ROWS)
    numeric = [pd.api.types.is_numeric_dtype(dtype) for dtype in table.dtypes]
    return {
        "title": title,
        "head": list(zip([str(name).replace("_", " ") for name in table.columns], numeric, strict=True)),
        "rows": [[_cell(value) for value in row] for row in shown.itertuples(index=False)],
        "numeric": numeric,
        "left_out": len(table) - len(shown),
    }


def _cell(value: Any) -> str:
    if pd.isna(value):
        return NONE
    return f"{value:,g}" if isinstance(value, int | float) else str(value)


def _environment(environment: pd.DataFrame) -> list[tuple[str, list[tuple[str, str]]]]:
    """Each item with its value, or with its values and the runs that have them where they differ."""
    items: list[tuple[str, list[tuple[str, str]]]] = []
    for item in environment.columns:
        runs_with: dict[str, list[str]] = {}
        for run, value in environment[item].items():
            runs_with.setdefault(str(value), []).append(str(run))
        if len(runs_with) == 1:
            items.append((item, [(value, "") for value in runs_with if value]))
        else:
            items.append((item, [(value or "unknown", ", ".join(runs)) for value, runs in runs_with.items()]))
    return [(item, values) for item, values in items if values]
