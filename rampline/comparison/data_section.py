"""What is in the data of a study: a section of the report, and a page of its own with pictures of every class."""

from __future__ import annotations

import base64
import io
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageOps

from rampline.comparison.section import Picture, ReportTable, Section, open_template
from rampline.data.dataset import PreparedDataset, example_file
from rampline.data.quality import DataReport
from rampline.files import write_text
from rampline.record.units import NONE, write_count

ROWS = 40  # longer tables are cut, with a line that says so
PICTURES, CLASSES = 12, 100  # of a contact sheet
LONGEST_SIDE = 128  # pixels
LEAK = "A network has no merit in knowing what it has seen in training: see the tables below."


def make_data_section(reports: Mapping[str, DataReport]) -> Section | None:
    """What is in the datasets, by the names of the runs that train on them; None without any."""
    if not reports:
        return None
    made = tuple(_make_table(title, table) for title, table in _data_tables(reports).items())
    return Section(id="data", title="Data", tables=made, about="Sizes are those before resizing.")


def _make_table(title: str, table: pd.DataFrame) -> ReportTable:
    left_out = len(table) - ROWS
    return ReportTable(
        title=title,
        head=tuple(str(name).replace("_", " ") for name in table.columns),
        rows=tuple(tuple(_cell(value) for value in row) for row in table.head(ROWS).itertuples(index=False)),
        numeric=tuple(bool(pd.api.types.is_numeric_dtype(dtype)) for dtype in table.dtypes),
        note=f"… and {left_out} more rows." if left_out > 0 else "",
    )


def _cell(value: Any) -> str:
    if pd.isna(value):
        return NONE
    if isinstance(value, int | float):
        return write_count(value) if float(value).is_integer() else f"{value:,g}"
    return str(value)


def _data_tables(reports: Mapping[str, DataReport]) -> dict[str, pd.DataFrame]:
    """Tables by heading, with the source where a study has several datasets, and the runs where these are of one."""
    tables: dict[str, pd.DataFrame] = {}
    of_source = Counter(report.fingerprint for report in reports.values())
    for runs, report in reports.items():
        source = f", {report.source} ({report.fingerprint[:8]})" if len(reports) > 1 else ""
        source += f" of {runs}" if of_source[report.fingerprint] > 1 else ""
        tables[f"Images by split and class{source}"] = _by_class(report.summary)
        tables[f"Files that do not decode{source}"] = report.undecodable
        tables[f"Images in more than one split{source}"] = _shorten(report.repeated("across"))
        if len(report.groups):
            tables[f"Groups in more than one split{source}"] = report.shared_groups
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


def write_data_page(dataset: PreparedDataset, report: DataReport, path: Path) -> None:
    """Write a page with the report of a dataset, and a contact sheet of each class; it loads nothing else."""
    leaks = report.leak_lines()
    section = make_data_section({"": report})
    page = open_template("data.html.j2").render(
        source=dataset.source,
        fingerprint=dataset.fingerprint,
        warnings=[*leaks, LEAK] if leaks else [],
        sections=[section, *_contact_sheets(dataset)],
    )
    write_text(path, page)


def _contact_sheets(dataset: PreparedDataset) -> list[Section]:
    split = "train" if "train" in dataset.splits else dataset.evaluation_split
    labels, paths = dataset.labels(split), dataset.paths(split)
    sheets = []
    for label, name in enumerate(dataset.class_names[:CLASSES]):
        indices = np.flatnonzero(labels == label)
        # From all of the class: its images lie side by side as they were taken.
        chosen = indices[np.unique(np.linspace(0, len(indices) - 1, PICTURES).astype(int))] if len(indices) else []
        shown = (_picture(dataset, split, int(i), paths[i] if paths else f"image {i}") for i in chosen)
        pictures = tuple(filter(None, shown))
        sheets.append(
            Section(
                id=f"class-{label}",
                title=name,
                pictures=pictures,
                gallery=f"{len(pictures)} of {len(indices):,} images of the split {split}",
            )
        )
    return sheets


def _picture(dataset: PreparedDataset, split: str, index: int, path: str) -> Picture | None:
    """The image, small; None where Pillow refuses what TensorFlow decodes, such as one with broken EXIF data."""
    try:
        image = ImageOps.exif_transpose(_read(dataset, split, index))
        if image.mode == "I;16":  # Pillow would cut off what is above 255
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        image = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError):
        return None
    image.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    png = io.BytesIO()
    image.save(png, "PNG")
    return Picture(png=base64.b64encode(png.getvalue()).decode(), lines=(path,))


def _read(dataset: PreparedDataset, split: str, index: int) -> Image.Image:
    if dataset.storage == "encoded_files":
        return Image.open(example_file(dataset.directory, split, index))
    height, width, channels = dataset.image_shape
    if dataset.storage == "tensor":
        shape = (dataset.splits[split], height, width, channels)
        pixels = np.memmap(dataset.images_file(split), np.uint8, "r", shape=shape)[index]
    else:
        content = example_file(dataset.directory, split, index).read_bytes()
        pixels = np.frombuffer(content, np.uint8).reshape(height, width, channels)
    return Image.fromarray(np.asarray(pixels[..., 0] if channels == 1 else pixels))
