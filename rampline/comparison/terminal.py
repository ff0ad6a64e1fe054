"""The comparison in a terminal: a table with as many columns as fit, then the answer in words."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from rampline.comparison.run_table import Column, make_columns
from rampline.comparison.runs import FINISHED, Comparison
from rampline.comparison.sentences import list_answers, list_remarks, list_verdicts, tell_repeats

MUTED = "dim"


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the table, the summary and each run's verdict.

    The least important columns are left out until every row fits on one line.
    """
    console.print(make_table(comparison, console))
    if comparison.reference:
        console.print(Text("* reference", style=MUTED))
    console.print(Text(tell_repeats(comparison), style=MUTED))
    for sentence in list_answers(comparison):
        console.print(Text(sentence))
    for line in (*list_verdicts(comparison), *list_remarks(comparison)):
        console.print(Text(line, style=MUTED))


def make_table(comparison: Comparison, console: Console) -> Table:
    """The widest table that `console` shows without cutting or wrapping a figure."""
    columns = make_columns(comparison)
    while True:
        table = _build(comparison, columns)
        width = Measurement.get(console, console.options.update(max_width=10_000), table).maximum
        droppable = [column for column in columns if column.rank]
        if width <= console.width or not droppable:
            return table
        columns.remove(max(reversed(droppable), key=lambda column: column.rank))


def _build(comparison: Comparison, columns: list[Column]) -> Table:
    title = Text(f"{comparison.study} · {comparison.execution}", style="bold")
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, header_style=MUTED)
    for column in columns:
        justify = "right" if column.numeric else "left"
        table.add_column(Text(column.title), justify=justify, no_wrap=True, overflow="ellipsis")
    for row in comparison.rows:
        style = "" if row["status"] == FINISHED else MUTED
        table.add_row(*(_cell(column, row, comparison.reference) for column in columns), style=style)
    return table


def _cell(column: Column, row: dict, reference: str) -> Text:
    if column.key == "run":
        return Text(row["run"], style="bold") + Text(" *" if row["run"] == reference else "", style=MUTED)
    return Text(column.text(row), style="red" if column.key == "status" and row["status"] != FINISHED else "")
