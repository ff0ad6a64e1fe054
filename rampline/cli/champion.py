"""`rampline promote RUN_ID`: a run's model becomes the champion of its study, if it passes the gate."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from rampline.progress import describe
from rampline.record.home import Home


class Alias(StrEnum):
    """What a model can be made."""

    CHAMPION = "champion"
    CHALLENGER = "challenger"


def promote(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN_ID", help="MLflow run id, run directory, or a model such as rampline-STUDY@challenger."
        ),
    ],
    alias: Annotated[
        Alias, typer.Option("--as", help="A challenger may be less accurate than the champion.")
    ] = Alias.CHAMPION,
) -> None:
    """Register a run's model in MLflow as rampline-STUDY, if it is complete, as accurate as the champion, and sound."""
    from rampline.registry.promotion import promote as promote_run  # MLflow: too slow for the other commands

    console = Console(highlight=False, markup=False, soft_wrap=True)
    promotion = promote_run(run_id, alias=alias.value, home=Home.from_environment(), log=console.print)
    console.print(promotion.sentence())
    console.print(f"model  models:/{promotion.model}@{promotion.alias}")


def predict(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Study whose champion in MLflow labels the images.")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of image files; sub-folders are read too.")],
    output: Annotated[
        str, typer.Option(metavar="FILE", help="Table, .csv or .parquet; by default in RAMPLINE_HOME/predictions.")
    ] = "",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step of the model.")] = 256,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each class, in columns p_CLASS.")
    ] = False,
) -> None:
    """Label the images of a folder with a study's champion, into a CSV or Parquet file."""
    from rampline.registry.prediction import predict_folder  # MLflow: too slow for the other commands

    console = Console(highlight=False, markup=False, soft_wrap=True)
    home = Home.from_environment()
    made = predict_folder(
        study, folder, home=home, output=output, batch_size=batch_size, with_all=probabilities, log=console.print
    )
    for label, count in made.counts.items():
        console.print(f"{label:<12}  {count:,}")
    console.print(made.sentence())


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
            help="Other images: digits, tfds:NAME, folder:PATH, url:URL or csv:PATH; their test split, else all.",
        ),
    ] = None,
) -> None:
    """Load the best checkpoint of a run and score it on a test set; by default that of its own data."""
    from rampline.registry.scoring import evaluate_one  # brings in MLflow: too slow for the other commands

    console = Console(highlight=False, markup=False, soft_wrap=True)
    scores = evaluate_one(run_id, data, home=Home.from_environment(), log=console.print)
    console.print(describe({"event": "evaluated", **scores}, epochs=None))
    console.print(f"checkpoint  {scores['checkpoint']} (epoch {scores['best_epoch']})")
