"""What commands print on and with: consoles and tables that all of them have alike."""

from __future__ import annotations

from collections.abc import Iterable

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from rampline.record.units import escape_controls


class SafeConsole(Console):
    """Shows control characters of names and messages, and obeys its own alone."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)


def line_console() -> Console:
    """For lines that people and scripts read: as they are, and never broken."""
    return SafeConsole(highlight=False, markup=False, soft_wrap=True)


def table_console(width: int = 120) -> Console:
    """For tables: as wide as the terminal, and of that `width` where output goes elsewhere."""
    console = SafeConsole(highlight=False, markup=False)
    return console if console.is_terminal else SafeConsole(highlight=False, markup=False, width=width)


def make_table(first: str, *others: str, numbers: tuple[str, ...] = (), title: str = "") -> Table:
    """A table without rows: what is named in bold, then the other columns; those of `numbers` on the right."""
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column(first, style="bold", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table
