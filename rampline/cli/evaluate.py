"""`rampline evaluate RUN_ID`: the best checkpoint of a run, or of a registered model, on a test set."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from rampline.home import Home
from rampline.progress import describe


def evaluate(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN_ID", help="MLflow run id, run directory, or a model such as rampline-STUDY@champion."
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Other images: digits, tfds:NAME, folder:PATH or csv:PATH; their test split, else all.",
        ),
    ] = None,
) -> None:
    """Load the best checkpoint of a run and score it on a test set; by default that of its own data."""
    from rampline.scoring import evaluate_one  # brings in MLflow: too slow for the other commands

    console = Console(highlight=False, markup=False, soft_wrap=True)
    scores = evaluate_one(run_id, data, home=Home.from_environment(), log=console.print)
    console.print(describe({"event": "evaluated", **scores}, epochs=None))
    console.print(f"checkpoint  {scores['checkpoint']} (epoch {scores['best_epoch']})")
