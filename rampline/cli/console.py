"""What commands print on and with: consoles and tables that all of them have alike."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from rampline.record.units import escape_controls


class SafeConsole(Console):
    """Shows text as it is, with control characters of names and messages as `\\x1b`, and obeys its own alone.

    What cannot be written is left out: a terminal that was closed, `tee` that Ctrl-C has ended, or a full disk must
    not end a training before it has saved a checkpoint.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(escape_controls(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Rich would end the process."""
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError:
            del self._buffer[:]


def line_console() -> Console:
    """For lines that people and scripts read: never broken."""
    return SafeConsole(soft_wrap=True)


def table_console(width: int = 120) -> Console:
    """For tables: as wide as the terminal, and of that `width` where output goes elsewhere."""
    console = SafeConsole()
    return console if console.is_terminal else SafeConsole(width=width)


def shows_bars(console: Console) -> bool:
    """Whether a person sees bars move: not in a dumb terminal, nor in a file that FORCE_COLOR gives colours."""
    return console.is_interactive and console.file.isatty()


def make_table(first: str, *others: str, numbers: tuple[str, ...] = (), title: str = "") -> Table:
    """A table without rows: what is named in bold, then the other columns; those of `numbers` on the right."""
    table = Table(title=title or None, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column(first, style="bold", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table
