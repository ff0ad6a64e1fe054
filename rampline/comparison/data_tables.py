"""The data report as the tables of `report.html`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rampline.comparison.section import ReportTable, Section
from rampline.data.quality import DataReport
from rampline.record.units import NONE

DATA_ROWS = 40  # longer tables are cut, with a line that says so


def make_data_tables(reports: Sequence[DataReport]) -> dict[str, pd.DataFrame]:
    """Tables by heading for `write_comparison`; the source is named in the headings where a study has several."""
    tables: dict[str, pd.DataFrame] = {}
    for report in reports:
        source = f", {report.source} ({report.fingerprint[:8]})" if len(reports) > 1 else ""
        tables[f"Images by split and class{source}"] = _by_class(report.summary)
        tables[f"Files that do not decode{source}"] = report.undecodable
        tables[f"Images in more than one split{source}"] = _shorten(report.repeated("across"))
        tables[f"Images more than once in one split{source}"] = _shorten(report.repeated("within"))
    return tables


# `Any` below: pandas' own annotations do not tell a table from a column.
def _by_class(summary: Any) -> pd.DataFrame:
    """A row per class with its images in each split, and the range of their sizes; all classes first."""
    everything = summary.assign(**{"class": "all"})
    rows = [_class_row(summary, everything)] if summary["class"].nunique() > 1 else []
    rows += [_class_row(summary, group) for _, group in summary.groupby("class", sort=False)]
    return pd.DataFrame(rows)


def _class_row(summary: Any, group: Any) -> dict[str, Any]:
    counts = group.groupby("split")["examples"].sum()
    row: dict[str, Any] = {"class": group["class"].iloc[0]}
    row |= {split: int(counts.get(split, 0)) for split in summary["split"].unique()}
    for side in ("width", "height"):
        low, high = group[f"min_{side}"].min(), group[f"max_{side}"].max()
        row[f"{side} in pixels"] = f"{low:g}" if low == high else f"{low:g}\N{EN DASH}{high:g}"
    return row


def _shorten(duplicates: Any) -> pd.DataFrame:
    """Without what the heading says, and with as much of the checksum as tells images apart."""
    return duplicates.drop(columns="kind").assign(sha256=duplicates["sha256"].str[:12])


def make_data_section(tables: Mapping[str, pd.DataFrame] | None) -> Section | None:
    """The tables by heading as a section of the report; None without any."""
    if not tables:
        return None
    made = tuple(_make_table(title, table) for title, table in tables.items())
    return Section(id="data", title="Data", tables=made, about="Sizes are those before resizing.")


def _make_table(title: str, table: pd.DataFrame) -> ReportTable:
    left_out = len(table) - DATA_ROWS
    return ReportTable(
        title=title,
        head=tuple(str(name).replace("_", " ") for name in table.columns),
        rows=tuple(tuple(_cell(value) for value in row) for row in table.head(DATA_ROWS).itertuples(index=False)),
        numeric=tuple(bool(pd.api.types.is_numeric_dtype(dtype)) for dtype in table.dtypes),
        note=f"… and {left_out} more rows." if left_out > 0 else "",
    )


def _cell(value: Any) -> str:
    if pd.isna(value):
        return NONE
    return f"{value:,g}" if isinstance(value, int | float) else str(value)
