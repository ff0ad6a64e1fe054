"""`rampline submit STUDY`: a study as a job of a cluster's scheduler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from rampline.cli.arguments import (
    OnlyOption,
    OverridesOption,
    SetOption,
    StudyArgument,
    all_overrides,
)
from rampline.record.home import Home
from rampline.study import load_study
from rampline.study.execution_file import new_execution
from rampline.tracking.pages import shorten

OptionsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- OPTION...]", help="Options of sbatch, such as --partition=gpu --time=8:00:00."),
]


def submit(
    study: StudyArgument,
    options: OptionsArgument = None,
    launcher: Annotated[Literal["slurm"], typer.Option(help="Whose job it becomes.")] = "slurm",
    only: OnlyOption = None,
    set_: SetOption = None,
    file: OverridesOption = None,
    spares: Annotated[int, typer.Option(min=0, help="Further nodes, to replace those that are lost.")] = 0,
) -> None:
    """Hand a study in as a job: it runs as by `rampline run` as soon as there are nodes for it.

    A job that is preempted, or that loses a node it has no spare for, is queued again and goes on where it was.
    """
    from rampline.jobs.batch_job import BatchJob, Resources

    home, console = Home.from_environment(), Console(highlight=False, markup=False, soft_wrap=True)
    loaded = load_study(study, only=only or [], overrides=all_overrides(file, set_ or []))
    folder, given = home.runs / loaded.name / new_execution(), options or []
    chosen = [part for run in only or [] for part in ("--only", run)]
    chosen += [part for assignment in set_ or [] for part in ("--set", assignment)]
    chosen += ["--overrides", str(file.absolute())] if file else []
    resources = Resources.of([run.config for run in loaded.runs], given)
    job = BatchJob(
        study=loaded.name,
        folder=folder,
        command=[
            str(Path(sys.executable).with_name("rampline")),
            *("run", study, "--launcher", launcher, "--execution", folder.name, *chosen),
        ],
        environment={"RAMPLINE_HOME": str(home.root)},
        nodes=resources.nodes + spares,
        cores=resources.cores,
        gpus=resources.gpus,
        options=given,
    )
    number = job.submit()
    console.print(f"job {number}: {job.nodes} nodes, {_per_node(resources.cores, resources.gpus)}")
    console.print(f"script {shorten(job.script)}")
    console.print(f"output {shorten(job.log)}")


def _per_node(cores: int, gpus: int) -> str:
    return f"{cores} cores" + (f" and {gpus} GPUs" if gpus else "") + " each"
