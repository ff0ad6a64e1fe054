"""`csv:PATH`: a table with the columns `path,label[,split]`, and another one where `data.group` names it.

The images lie in the table's folder or below. Paths are relative to the table, or absolute. A table is often somebody
else's: it must not make other files of this machine part of a dataset.
"""

from __future__ import annotations

import csv
from contextlib import suppress
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import pandas as pd

from rampline.config import DataConfig
from rampline.data.archives import Boundary
from rampline.data.sources.image_files import SPLIT_ALLOWED, ImageFile, files_fingerprint, files_source, split_called
from rampline.data.sources.source import Source, Tell, path_of
from rampline.errors import DatasetError
from rampline.record.units import escape_controls


def directory_name(config: DataConfig) -> str:
    """What the prepared directory is named after."""
    return path_of(config.source).stem


def stat_fingerprint(config: DataConfig, tfds_directory: Path) -> str:
    """A digest of the table's rows and of the sizes and times of the files that it names."""
    return files_fingerprint(_list_files(path_of(config.source), config.group))


def open_source(
    config: DataConfig, tfds_directory: Path, *, for_training: bool = True, tell: Tell | None = None
) -> Source:
    """Classes are the labels, as texts, sorted; rows without a `split` column are all `train`.

    Raises:
        DatasetError: when the table is missing or lacks a column or a value, or names files that do not exist or lie
            outside its folder.
    """
    table = path_of(config.source)
    return files_source(_list_files(table, config.group), origin=f"csv {table}", for_training=for_training)


def _list_files(path: Path, group: str | None) -> list[ImageFile]:
    table = _read_table(path, group)
    files, missing, boundary = [], [], Boundary(path.parent)
    groups = table[group] if group else repeat("", len(table))
    for name, label, split, held in zip(table["path"], table["label"], table["split"], groups, strict=True):
        image = path.parent / name
        try:
            stat = boundary.stat(image)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with a null byte
            missing.append(image)
            continue
        except OSError as error:
            raise DatasetError(f"csv {path}: cannot read {image}: {error.strerror}") from error
        files.append(
            ImageFile(
                split=split,
                class_name=escape_controls(label),
                name=escape_controls(name),
                path=str(image),
                size_bytes=stat.st_size,
                modified_nanoseconds=stat.st_mtime_ns,
                group=held,
            )
        )
    if missing:
        raise DatasetError(f"csv {path}: {len(missing)} of {len(table)} files do not exist, the first is {missing[0]}")
    return files


def _read_table(path: Path, group: str | None) -> pd.DataFrame:
    """Columns path, label, split (ours: train, validation, test) and `group`, all texts and none empty."""
    try:
        # Texts as they stand: a class may be called "NA" or "007".
        table = pd.read_csv(path, dtype=str, keep_default_na=False).rename(columns=str.strip)
        # As it stands, too: of two columns `label`, pandas calls one `label.1`.
        header = pd.read_csv(path, dtype=str, keep_default_na=False, header=None, nrows=1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        reason = "save it as UTF-8" if isinstance(error, UnicodeDecodeError) else reason
        raise DatasetError(f"csv {path} cannot be read: {reason}") from error
    if not isinstance(table.index, pd.RangeIndex):  # what pandas makes of the values that have no column
        values, has = table.index.nlevels + len(table.columns), ", ".join(table.columns)
        raise DatasetError(f"csv {path} has {values} values in a row, but {len(table.columns)} columns: {has}")
    used = ("path", "label", "split", *filter(None, [group]))
    names = [name.strip() for name in header.iloc[0]]
    if doubled := [column for column in used if names.count(column) > 1]:
        raise DatasetError(f"csv {path} has two columns {doubled[0]!r}: rename one of them")
    absent = [column for column in ("path", "label") if column not in table.columns]
    if absent:
        has = ", ".join(table.columns)
        raise DatasetError(
            f"csv {path} has no column {absent[0]!r} (it has {has}): the columns must be path,label[,split]"
        )
    if group and group not in table.columns:
        raise DatasetError(
            f"data.group={group!r} is not allowed: csv {path} has the columns {', '.join(table.columns)}"
        )
    if "split" not in table.columns:
        table["split"] = "train"
    for column in dict.fromkeys(used):
        table[column] = table[column].str.strip()
        _check_cells(path, table, column, table[column] != "", "a non-empty text")
    called: Any = {name: split_called(name) for name in table["split"].unique()}
    splits = table["split"].map(called)
    _check_cells(path, table, "split", splits.notna(), f"one of {SPLIT_ALLOWED}")
    return table.assign(split=splits)


def _check_cells(path: Path, table: pd.DataFrame, column: str, good: Any, allowed: str) -> None:
    for row in table.index[~good][:1]:
        where, value = f"csv {path}{_line_of(path, row)}", table.at[row, column]
        raise DatasetError(f"{where}: {column}={value!r} is not allowed: it must be {allowed}")


def _line_of(path: Path, row: int) -> str:
    """`, line N`, where a row begins; nothing of a compressed table.

    Blank lines are no rows, and a row with a line break in a cell has several.
    """
    with suppress(UnicodeDecodeError), path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file)
        ends = ((rows.line_num, cells) for cells in rows if len(cells) > 1 or "".join(cells).strip())
        end, cells = next(islice(ends, row + 1, None))  # behind the header
        return f", line {end - ''.join(cells).count(chr(10))}"
    return ""
