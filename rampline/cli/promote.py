"""`rampline promote RUN_ID`: a run's model becomes the champion of its study, if it passes the gate."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from rampline.home import Home


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
