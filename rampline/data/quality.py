"""The data report: what is in a prepared dataset, what was left out, and what is in it twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from rampline.data.dataset import SPLITS
from rampline.errors import DatasetError
from rampline.files import read_csv, read_json, write_csv, write_json
from rampline.record.units import write_markdown_table

# Of width and height, in pixels before resizing.
_STATISTICS = ("min", "median", "max")
_LISTED = 20
_GROUPS = ("group", "split", "images")


class ReportRow(NamedTuple):
    """One example that was selected; width and height are 0, and `problem` says why, where it does not decode."""

    split: str
    class_name: str
    label: int
    name: str
    sha256: str
    width: int
    height: int
    problem: str
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What a person should know about a dataset before training on it.

    Attributes:
        source: `data.source` of the configuration that it was prepared for.
        fingerprint: sha256 of the source.
        summary: a row per split and class: `split class examples`, and `min_width median_width max_width min_height
            median_height max_height` in pixels, before resizing.
        undecodable: `split class name problem` of the examples that were left out.
        duplicates: `group kind split class name sha256` of every example whose bytes another one has too; `group`
            numbers the images, `kind` is `across` where an image is in more than one split (leakage), else `within`.
        groups: `group split images` of every group of `data.group`, a row per split that it is in; empty without.
    """

    source: str
    fingerprint: str
    summary: pd.DataFrame
    undecodable: pd.DataFrame
    duplicates: pd.DataFrame
    groups: pd.DataFrame

    @property
    def shared_groups(self) -> pd.DataFrame:
        """The rows of `groups` whose group is in more than one split."""
        return self.groups.loc[self.groups.duplicated("group", keep=False)]

    def repeated(self, kind: str) -> pd.DataFrame:
        """The duplicates of one kind, `across` or `within`."""
        return self.duplicates.loc[self.duplicates["kind"] == kind]

    def count_lines(self) -> list[str]:
        """`train: 9 images: a (4), b (5)`, a line per split with the first classes; and what does not decode."""
        lines = []
        for split, rows in self.summary.groupby("split", sort=False):
            counts = [f"{name} ({examples:,})" for name, examples in zip(rows["class"], rows["examples"], strict=True)]
            more = [f"… and {len(counts) - _LISTED} other classes"] if len(counts) > _LISTED else []
            lines.append(f"{split}: {rows['examples'].sum():,} images: " + ", ".join(counts[:_LISTED] + more))
        if len(self.undecodable):
            lines.append(f"{len(self.undecodable)} images do not decode and are left out, see undecodable.csv")
        if len(self.groups):
            of_split = {split: count_groups(self.groups[self.groups["split"] == split]) for split in SPLITS}
            counts = ", ".join(f"{number:,} in {split}" for split, number in of_split.items() if number)
            lines.append(f"groups: {counts}; {count_groups(self.shared_groups) or 'none'} in more than one split")
        return lines

    def leak_lines(self) -> list[str]:
        """How many images, and how many groups, are in more than one split; nothing where there are none."""
        across, shared = self.repeated("across"), self.shared_groups["group"].unique()
        where = "in more than one split, a leak"
        return [
            *_tell("image", count_groups(across), where, across["name"], more=1),
            *_tell("group", len(shared), where, shared, more=2),
        ]

    def leak_warnings(self) -> list[str]:
        """`leak_lines` as sentences for a person who will read the accuracy of a run."""
        why = "accuracy on such images is no accuracy on new ones"
        return [f"{self.source}: {leak}; {why}." for leak in self.leak_lines()]

    def duplicate_lines(self) -> list[str]:
        """`leak_lines`, and how many images are more than once in one split, or are in several classes."""
        within = self.repeated("within")
        classes: Any = self.duplicates.groupby("group")["class"]
        mixed = self.duplicates.loc[classes.transform("nunique") > 1]
        return [
            *self.leak_lines(),
            *_tell("image", count_groups(mixed), "in more than one class", mixed["name"], more=1),
            *_tell("image", count_groups(within), "more than once in one split", within["name"], more=1),
        ]

    def to_markdown(self) -> str:
        """The whole report as GitHub markdown; long lists are cut, with a line that says so."""
        across, within, shared = self.repeated("across"), self.repeated("within"), self.shared_groups
        of_groups = f"## Groups in more than one split (leakage): {count_groups(shared)}"
        parts = [
            f"# Data report: {self.source}",
            f"Fingerprint `{self.fingerprint}`. Sizes are pixels before resizing.",
            _markdown_table(self.summary),
            f"## Files that do not decode: {len(self.undecodable)}",
            _markdown_list(self.undecodable),
            f"## Images in more than one split (leakage): {count_groups(across)}",
            _markdown_list(across),
            of_groups if len(self.groups) else "",
            _markdown_list(shared),
            f"## Images more than once in one split: {count_groups(within)}",
            _markdown_list(within),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"


def make_report(rows: Sequence[ReportRow], *, source: str, fingerprint: str) -> DataReport:
    """Summarise the examples that were selected, a row each."""
    examples = pd.DataFrame(rows, columns=pd.Index(ReportRow._fields)).rename(columns={"class_name": "class"})
    decoded, broken = examples.query("problem == ''"), examples.query("problem != ''")
    return DataReport(
        source=source,
        fingerprint=fingerprint,
        summary=_summarise(decoded),
        undecodable=broken.reindex(columns=["split", "class", "name", "problem"]).reset_index(drop=True),
        duplicates=_find_duplicates(decoded),
        groups=_count_by_split(decoded),
    )


# `Any` below: pandas' own annotations do not tell a table from a column.
def _summarise(decoded: Any) -> pd.DataFrame:
    columns = [(f"{statistic}_{side}", side, statistic) for side in ("width", "height") for statistic in _STATISTICS]
    # A categorical sorts the splits as people list them, not by the alphabet.
    ordered = decoded.assign(split=pd.Categorical(decoded["split"], SPLITS))
    grouped = ordered.groupby(["split", "label", "class"], observed=True)
    table = grouped.agg(examples=("name", "size"), **{name: (side, statistic) for name, side, statistic in columns})
    return table.reset_index().drop(columns="label").astype({"split": str})


def _find_duplicates(decoded: Any) -> pd.DataFrame:
    repeated = decoded[decoded.duplicated("sha256", keep=False)]
    groups = repeated.groupby("sha256", sort=False)
    across = groups["split"].transform("nunique") > 1
    table = repeated.assign(group=groups.ngroup() + 1, kind=across.map({True: "across", False: "within"}))
    return table[["group", "kind", "split", "class", "name", "sha256"]].sort_values(
        ["group", "name"], ignore_index=True
    )


def _count_by_split(decoded: Any) -> pd.DataFrame:
    ordered = decoded[decoded["group"] != ""].assign(split=pd.Categorical(decoded["split"], SPLITS))
    return ordered.groupby(["group", "split"], observed=True).size().reset_index(name="images").astype({"split": str})


def _tell(noun: str, count: int, where: str, names: Iterable[str], *, more: int) -> list[str]:
    """A line with the first two `names`, which are those of `more` of the images or groups; none without any."""
    are = f"1 {noun} is" if count == 1 else f"{count:,} {noun}s are"
    return [f"{are} {where}: {' and '.join(islice(names, 2))}{', …' if count > more else ''}"] if count else []


def count_groups(duplicates: Any) -> int:
    """How many groups a table of `DataReport` has: of images that are the same, or that belong together."""
    return int(duplicates["group"].nunique())


def write_report(directory: Path, report: DataReport) -> None:
    """Write `data_report.{json,csv}`, `undecodable.csv`, `duplicates.csv`, and `groups.csv` where there are groups."""
    examples: Any = report.summary.groupby("split", sort=False)["examples"].sum()
    overview = {
        "source": report.source,
        "fingerprint": report.fingerprint,
        "examples": {split: int(number) for split, number in examples.items()},
        "undecodable": len(report.undecodable),
        "duplicates_across_splits": count_groups(report.repeated("across")),
        "duplicates_within_splits": count_groups(report.repeated("within")),
    }
    if len(report.groups):
        overview["groups"] = count_groups(report.groups)
        overview["groups_across_splits"] = count_groups(report.shared_groups)
        write_csv(directory / "groups.csv", report.groups)
    write_json(directory / "data_report.json", overview)
    write_csv(directory / "data_report.csv", report.summary)
    write_csv(directory / "undecodable.csv", report.undecodable)
    write_csv(directory / "duplicates.csv", report.duplicates)


def read_report(directory: Path) -> DataReport:
    """The report of a prepared directory.

    Raises:
        DatasetError: when it has none.
    """
    try:
        overview, groups = read_json(directory / "data_report.json"), directory / "groups.csv"
        return DataReport(
            source=overview["source"],
            fingerprint=overview["fingerprint"],
            summary=_read_table(directory / "data_report.csv"),
            undecodable=_read_table(directory / "undecodable.csv"),
            duplicates=_read_table(directory / "duplicates.csv"),
            groups=_read_table(groups, group=str) if groups.is_file() else pd.DataFrame(columns=_GROUPS),
        )
    except (OSError, ValueError) as error:
        raise DatasetError(f"{directory} holds no data report: {error}") from error


def _read_table(path: Path, **types: Any) -> pd.DataFrame:
    # Classes and names are texts, even those that look like numbers or like "NA".
    texts: Any = dict.fromkeys(("split", "class", "name", "problem", "kind", "sha256"), str)
    return read_csv(path, dtype=texts | types, keep_default_na=False)


def _markdown_list(table: pd.DataFrame) -> str:
    more = f"\n\n… and {len(table) - _LISTED} more." if len(table) > _LISTED else ""
    return _markdown_table(table.head(_LISTED)) + more if len(table) else ""


def _markdown_table(table: pd.DataFrame) -> str:
    return write_markdown_table(table.columns, (map(_cell, row) for row in table.itertuples(index=False, name=None)))


def _cell(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
