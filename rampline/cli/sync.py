"""`rampline sync`: what MLflow has not got, because it was away or the process was killed, is delivered now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rampline.errors import InputError
from rampline.home import Home
from rampline.links import shorten

What = Annotated[
    str | None,
    typer.Argument(
        metavar="[STUDY | RUN_DIR | EXECUTION_DIR]", help="What to deliver; all of RAMPLINE_HOME if left out."
    ),
]


def sync(what: What = None) -> None:
    """Deliver to MLflow what it has not got of runs: params, epochs, results, evaluation, artifacts, final status."""
    # They bring in MLflow and pandas: too slow for the other commands.
    from rampline.execution import compare_runs
    from rampline.run_directory import RunDirectory
    from rampline.tracking.store import open_tracking
    from rampline.tracking.sync import sync_execution

    home, console = Home.from_environment(), Console(highlight=False, markup=False, soft_wrap=True)
    chosen = _executions(what, home)
    client, delivered = open_tracking(home), 0
    for folder, runs in chosen:
        count = sync_execution(client, folder, log=console.print, runs=runs)
        delivered += count
        if count and any(RunDirectory(run.parent).is_complete for run in folder.glob("*/evaluation.json")):
            console.print(f"report  {shorten(compare_runs(folder).report)}")
    if not delivered:
        console.print("MLflow has everything")


def _executions(what: str | None, home: Home) -> list[tuple[Path, tuple[str, ...]]]:
    """Folders of executions, each with the runs that are meant (none: all).

    Raises:
        InputError: when there is nothing of that name.
    """
    from rampline.execution_file import FILE
    from rampline.tracking.sync import executions

    if what is None:
        return [(folder, ()) for folder in executions(home.runs)]
    path = Path(what).absolute()
    if (path / FILE).is_file():
        return [(path, ())]
    if (path / "config.json").is_file() and (path.parent / FILE).is_file():
        return [(path.parent, (path.name,))]
    found = [(folder, ()) for folder in executions(home.runs) if folder.parent.name == _name(what)]
    if not found:
        raise InputError(
            f"nothing to deliver: {what!r} is neither a study with executions in {home.runs}, "
            "nor the folder of an execution or of a run"
        )
    return found


def _name(what: str) -> str:
    from rampline.study import load_study

    return load_study(what).name if what.endswith((".yaml", ".yml")) else what
