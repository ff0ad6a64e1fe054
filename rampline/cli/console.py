"""What commands print on and with: consoles and tables that all of them have alike."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def line_console() -> Console:
    """For lines that people and scripts read: as they are, and never broken."""
    return Console(highlight=False, markup=False, soft_wrap=True)


def table_console(width: int = 120) -> Console:
    """For tables: as wide as the terminal, and of that `width` where output goes elsewhere."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=width)


def make_table(first: str, *others: str, numbers: tuple[str, ...] = (), title: str = "") -> Table:
    """A table without rows: what is named in bold, then the other columns; those of `numbers` on the right."""
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column(first, style="bold", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table
