"""`rampline studies`: what there is to run."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rampline.study import built_in_studies, load_study


def studies() -> None:
    """List the studies that come with Rampline, and their runs."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("study", style="bold", no_wrap=True)
    table.add_column("runs")
    table.add_column("description")
    for name in built_in_studies():
        study = load_study(name)
        table.add_row(study.name, "\n".join(run.name for run in study.runs), study.description)
    Console().print(table)
