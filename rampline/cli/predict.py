"""`rampline predict STUDY FOLDER`: the images of a folder, labelled by the study's champion."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from rampline.home import Home


def predict(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="Study whose champion in MLflow labels the images.")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder of image files; sub-folders are read too.")],
    output: Annotated[
        str, typer.Option(metavar="FILE", help="Table, .csv or .parquet; by default in RAMPLINE_HOME/predictions.")
    ] = "",
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step of the model.")] = 256,
) -> None:
    """Label the images of a folder with a study's champion, into a CSV or Parquet file."""
    from rampline.prediction import predict_folder  # MLflow: too slow for the other commands

    console = Console(highlight=False, markup=False, soft_wrap=True)
    home = Home.from_environment()
    made = predict_folder(study, folder, home=home, output=output, batch_size=batch_size, log=console.print)
    for label, count in made.counts.items():
        console.print(f"{label:<12}  {count:,}")
    console.print(made.sentence())
