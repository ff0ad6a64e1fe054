"""`rampline worker RUN_DIR`: one role of a run, started by hand or by a cluster manager; TF_CONFIG says which."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def worker(run_directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The run directory.")]) -> None:
    """Run one role of a run; TF_CONFIG says which, and it is used as it is."""
    from rampline.worker import main  # brings in what only a role needs

    raise typer.Exit(main([str(run_directory)]))
