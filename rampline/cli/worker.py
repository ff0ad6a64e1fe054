"""`rampline worker RUN_DIR`: one role of a run, started by hand or by a cluster manager; TF_CONFIG says which."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from rampline.errors import ClusterConfigError


def worker(run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")]) -> None:
    """Run one role of a run; TF_CONFIG says which. It is started again when it, or one of its peers, is lost."""
    from rampline.cluster.supervisor import supervise
    from rampline.cluster.tf_config import parse_tf_config
    from rampline.run_directory import RunDirectory

    directory = RunDirectory(run_directory.absolute())
    if not directory.config_file.is_file():
        raise ClusterConfigError(f"{run_directory} is no run directory: it has no {directory.config_file.name}")
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ClusterConfigError("TF_CONFIG is not set: it says which role of the run this is")
    task = parse_tf_config(text, directory.read_config())
    typer.echo(f"joining the run in {run_directory} as {task.role} {task.index}")
    supervise(directory, on_event=lambda event: None, log=typer.echo, tasks=[task])
    typer.echo("the run is complete")
