"""`rampline studies`: what there is to run, and what each of it shows."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rampline.study import Study, built_in_studies, load_study

WIDTH_WITHOUT_TERMINAL = 120


def studies(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="Show all about one: its name, or the path of a study file.")
    ] = None,
) -> None:
    """List the studies that come with Rampline, or show one: what it teaches, its runs, what others have measured."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    if study is None:
        _print_list(console)
    else:
        _print_card(load_study(study), console)


def _print_list(console: Console) -> None:
    table = _make_table("study", "runs", "teaches", "takes", numbers=("runs",))
    for name in built_in_studies():
        study = load_study(name)
        table.add_row(study.name, str(len(study.runs)), study.teaches or study.description, study.expected_hours)
    console.print(table)
    console.print("`rampline studies STUDY` shows one, `rampline plan STUDY` what would run here", highlight=False)


def _print_card(study: Study, console: Console) -> None:
    card = Table.grid(padding=(0, 2))
    for title, text in _card(study).items():
        if text:
            card.add_row(Text(title, style="dim"), Text(text))
    console.print(card)
    console.print(_runs_table(study))
    if study.published_metrics:
        console.print(Text("published by others, on other hardware"))
        console.print(_published_table(study))


def _card(study: Study) -> dict[str, str]:
    deadline = "" if study.deadline_hours is None else f", in {study.deadline_hours:g} hours at most"
    accuracy = f"whose accuracy is at most {study.accuracy_tolerance:g} below that of the most accurate one"
    return {
        study.name: study.description,
        "teaches": study.teaches,
        "hardware": study.hardware,
        "takes": study.expected_hours,
        "recommends": f"the cheapest and the fastest run {accuracy}{deadline}",
        "prices": "\n".join(f"{machine}: ${price:g} per hour" for machine, price in study.prices.items()),
        "published in": study.published_source,
    }


def _runs_table(study: Study) -> Table:
    table = _make_table(
        "run", "strategy", "replicas", "global batch", "description", numbers=("replicas", "global batch")
    )
    for run in study.runs:
        config = run.config
        strategy = config.strategy.replace("_", " ") + (", fit" if config.engine == "fit" else "")
        name = f"{run.name} (reference)" if run.name == study.reference else run.name
        table.add_row(name, strategy, str(config.replicas), str(config.global_batch_size), run.description)
    return table


def _published_table(study: Study) -> Table:
    metrics = study.published_metrics
    table = _make_table("run", *metrics, numbers=metrics)
    for run in study.runs:
        if run.published:
            table.add_row(run.name, *(f"{run.published[m]:g}" if m in run.published else "" for m in metrics))
    return table


def _make_table(first: str, *others: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column(first, style="bold", no_wrap=True)
    for name in others:
        table.add_column(name, justify="right" if name in numbers else "left")
    return table
