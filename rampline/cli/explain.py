"""`rampline explain STUDY`: where the time of each run went, and what holds it back."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rampline.cli.arguments import OnlyOption, SetOption, StudyArgument
from rampline.config import ExplainConfig, parse_overrides
from rampline.errors import ConfigError, InputError
from rampline.home import Home
from rampline.stages import check_study
from rampline.study import Study, load_study

if TYPE_CHECKING:
    from rampline.explain.explanation import Explanation

MeasureOption = Annotated[
    bool,
    typer.Option("--measure", help="Measure now: one epoch of each run on this machine, in a folder of its own."),
]
WIDTH_WITHOUT_TERMINAL = 140


def explain(
    study: StudyArgument, only: OnlyOption = None, set_: SetOption = None, measure: MeasureOption = False
) -> None:
    """Show where the time of a study's latest execution went, run by run, or measure it now."""
    home, console = Home.from_environment(), Console()
    if measure:
        folder = _measure(check_study(study, only or [], parse_overrides(set_ or [])), home, console)
    elif set_:
        raise ConfigError("--set changes what is measured: it goes with --measure")
    else:
        folder = _latest(study, home)
    explanations = _read(folder, only or [])
    if not explanations:
        raise InputError(
            f"no run of {folder} was probed (explain.steps=0?): `rampline explain {study} --measure` does it"
        )
    _show(explanations, console)


def _latest(study: str, home: Home) -> Path:
    from rampline.execution_file import latest_execution

    folder = latest_execution(load_study(study).name, home)
    if folder is None:
        raise InputError(f"study {study} has no execution in {home.runs}: `rampline run {study}`, or add --measure")
    return folder


def _measure(study: Study, home: Home, console: Console) -> Path:
    from rampline.cluster.fork_server import fork_server
    from rampline.cluster.supervisor import supervise
    from rampline.data.preparation import prepare_dataset
    from rampline.explain.explanation import explain_run
    from rampline.explain.replica import measure_replicas
    from rampline.run_directory import RunDirectory, RunIdentity

    def log(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    name = f"explain-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder, directories = home.runs / study.name / name, []
    with fork_server():
        for run in study.runs:
            config = dataclasses.replace(
                run.config, epochs=1, model=dataclasses.replace(run.config.model, weights="none")
            )
            if not config.explain.steps:
                config = dataclasses.replace(config, explain=ExplainConfig())
            dataset = prepare_dataset(config.data, home, log=log)
            directory = RunDirectory(folder / run.name)
            directory.create(config, RunIdentity(study=study.name, name=run.name, dataset=str(dataset.directory)))
            log(f"{run.name}: one epoch and its probes")
            supervise(directory, on_event=lambda event: None, log=log)
            directories.append(directory)
        measure_replicas(directories, folder / "explain", log=log)
    for directory in directories:
        explain_run(directory).write(directory.explanation_file)
    return folder


def _read(folder: Path, only: list[str]) -> dict[str, Explanation]:
    from rampline.explain.explanation import Explanation

    files = sorted(folder.glob("*/explanation.json"), key=lambda file: (file.parent / "run.json").stat().st_mtime)
    found = {file.parent.name: Explanation.read(file) for file in files}
    for name in only:
        if name not in found:
            raise InputError(f"run {name} of {folder} is not explained: there are {', '.join(found) or 'none'}")
    return {name: explanation for name, explanation in found.items() if not only or name in only}


def _show(explanations: dict[str, Explanation], console: Console) -> None:
    from rampline.explain.table import NOISE_NOTE, RUN_PARTS, STEP_PARTS, with_share, write_milliseconds

    console = console if console.is_terminal else Console(width=WIDTH_WITHOUT_TERMINAL)
    steps = {name: dataclasses.asdict(explanation.step) for name, explanation in explanations.items()}
    runs = {name: dataclasses.asdict(explanation.run) for name, explanation in explanations.items()}
    noise = {name: explanation.noise for name, explanation in explanations.items()}
    for title, parts, rows, noisy in (
        ("milliseconds of one training step", STEP_PARTS, steps, noise),
        ("seconds of the whole run", RUN_PARTS, runs, {}),
    ):
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
        table.add_column("run", style="bold", no_wrap=True)
        for column in [*(words for _, words in parts), "total"]:
            table.add_column(column, justify="right")
        for name, row in rows.items():
            own = noisy.get(name, {})
            cells = (with_share(row[key], row, own.get(key, math.nan)) for key, _ in parts)
            table.add_row(name, *cells, write_milliseconds(sum(row.values())))
        console.print(table)
    if any(noise.values()):
        console.print(Text(NOISE_NOTE, style="dim"))
    for name, explanation in explanations.items():
        console.print(Text(f"{name}: ", style="bold") + Text(explanation.verdict.sentence))
