"""The table of predictions, written row by row as CSV or Parquet."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from rampline.files import csv_cell


class Row(NamedTuple):
    """One image: `label` is empty, `probability` None and `error` says why where it could not be read."""

    path: str
    label: str
    probability: float | None
    model_version: int
    error: str


SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("label", pa.string()),
        ("probability", pa.float32()),
        ("model_version", pa.int32()),
        ("error", pa.string()),
    ]
)
ROWS_PER_GROUP = 10_000


class TableWriter(Protocol):
    """Takes the rows in their order."""

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows."""


@contextmanager
def open_table(path: Path, suffix: str) -> Iterator[TableWriter]:
    """A table to fill, in the form that `suffix` names; synced to the disk at the end of the block."""
    if suffix == ".csv":
        with open(path, "w", newline="", encoding="utf-8") as file:
            yield _CsvTable(file)
    else:
        with pq.ParquetWriter(path, SCHEMA) as writer:
            table = _ParquetTable(writer)
            yield table
            table.flush()
    with open(path, "rb") as file:
        os.fsync(file.fileno())


class _CsvTable:
    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        self._writer.writerow(Row._fields)

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            probability = None if row.probability is None else float(f"{row.probability:.6g}")
            self._writer.writerow(map(csv_cell, row._replace(probability=probability)))


class _ParquetTable:
    """Rows are gathered: a group per batch would make files of nothing but their own index."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer
        self._rows: list[Row] = []

    def write(self, rows: Sequence[Row]) -> None:
        self._rows += rows
        if len(self._rows) >= ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        columns = list(zip(*self._rows, strict=True)) or [()] * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        self._writer.write_table(pa.table(arrays, schema=SCHEMA))
        self._rows = []
