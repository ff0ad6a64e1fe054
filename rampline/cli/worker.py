"""`rampline worker RUN_DIR`: one role of a run, started by hand or by a cluster manager; TF_CONFIG says which."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from rampline.errors import RunFailed


def worker(run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")]) -> None:
    """Run one role of a run; TF_CONFIG says which, and it is used as it is."""
    from rampline.cluster.process import end_processes

    typer.echo(f"joining the run in {run_directory}")
    role = subprocess.Popen(
        [sys.executable, "-m", "rampline.worker", str(run_directory)],
        env={**os.environ, "RAMPLINE_PARENT_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1"},
        # TensorFlow may swallow what the terminal sends: this process ends the role instead.
        start_new_session=True,
    )
    try:
        status = role.wait()
    finally:
        end_processes([role])
    if status == -signal.SIGALRM:
        raise RunFailed("the other roles of TF_CONFIG did not answer within cluster.rendezvous_timeout_seconds")
    if status == 0:
        typer.echo("the run is complete")
    raise typer.Exit(status if status >= 0 else 128 - status)
