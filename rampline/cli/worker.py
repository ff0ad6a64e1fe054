"""`rampline worker RUN_DIR`: one role of a run, started by hand or by a cluster manager; TF_CONFIG says which."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from rampline.errors import RunFailed


def worker(run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")]) -> None:
    """Run one role of a run; TF_CONFIG says which, and it is used as it is."""
    role = subprocess.Popen([sys.executable, "-m", "rampline.worker", str(run_directory)])
    try:
        status = role.wait()
    except BaseException:
        role.terminate()
        role.wait()
        raise
    if status == -signal.SIGALRM:
        raise RunFailed("the other roles of TF_CONFIG did not answer within cluster.rendezvous_timeout_seconds")
    raise typer.Exit(status if status >= 0 else 128 - status)
