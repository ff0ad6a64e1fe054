"""The arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

StudyArgument = Annotated[
    str, typer.Argument(metavar="STUDY", help="A study that comes with Rampline, or the path of a study file.")
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="RUN", help="Only this run; may be given several times.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting for every run, such as epochs=2, or for one, such as baseline:epochs=2; several times.",
    ),
]
