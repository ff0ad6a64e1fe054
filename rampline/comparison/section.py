"""A section of the report: sentences, tables and charts, which one template shows."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from rampline.comparison.charts import DARK, DARK_PARTS, LIGHT, LIGHT_PARTS, declare_colors

TEMPLATES = Path(__file__).parent / "templates"
UNIT = re.compile(r"(?<=\d) (?=(?:%|s|ms|min|h)(?!\w))")
GAP = 2  # between columns, in characters


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart of the report.

    Args:
        title: its heading.
        caption: how to read it.
        spec: in Vega-Lite, from `rampline.comparison.charts`.
        by_time: what of `spec` is other where the reader chooses time instead of epochs; empty for no choice.
        legend: words and CSS colour of what is not told apart by run.
    """

    title: str
    caption: str
    spec: dict[str, Any] = field(hash=False)
    by_time: dict[str, Any] = field(hash=False, default_factory=dict)
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ReportTable:
    """A table whose cells are text already; an empty title puts it under the section's own heading.

    Args:
        head: one heading per column; the first column names the row.
        rows: as many cells as `head` has in each.
        numeric: per column, whether its cells are figures (set at the right); by default of all but the first.
        note: how to read it, below the table.

    Raises:
        ValueError: if a row or `numeric` is not as long as `head`.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "numeric", self.numeric or (False, *(True,) * (len(self.head) - 1)))
        lengths = {len(self.numeric), *(len(row) for row in self.rows)}
        if lengths != {len(self.head)}:
            raise ValueError(f"table '{self.title}': {len(self.head)} headings, but rows or numeric of {lengths}")

    @property
    def width(self) -> int:
        """Of a row, in characters."""
        columns = zip(self.head, *self.rows, strict=True)
        return sum(max(len(cell) for cell in column) for column in columns) + GAP * (len(self.head) - 1)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image with its caption, a line each.

    Args:
        png: base64.
        lines: of the caption; the first is said in place of the image, too.
    """

    png: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the report, shown as title, sentences, charts, tables, pictures, about.

    Args:
        id: its anchor.
        title: its heading.
        sentences: what there is to say, a paragraph each; one that begins with a run's name and a colon is marked so.
        tables: figures to look up.
        charts: figures to look at.
        pictures: images with captions.
        gallery: their heading.
        about: how the figures are made.
    """

    id: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    charts: tuple[Chart, ...] = ()
    pictures: tuple[Picture, ...] = ()
    gallery: str = ""
    about: str = ""


def open_template(name: str) -> Template:
    """A template of pages, with their colours and style; the macros of `section.html.j2` show sections in it."""
    options = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    templates = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, **options)
    templates.filters["hold_units"] = hold_units
    templates.globals["css"] = Markup((TEMPLATES / "report.css").read_text())
    templates.globals |= {"light": declare_colors(LIGHT, LIGHT_PARTS), "dark": declare_colors(DARK, DARK_PARTS)}
    return templates.get_template(name)


def hold_units(text: str) -> str:
    """The text with figures and their units on one line, wherever it is broken."""
    return UNIT.sub("\N{NO-BREAK SPACE}", text)
