"""The arguments that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from rampline.config import parse_overrides
from rampline.errors import ConfigError
from rampline.study.content import without_seed
from rampline.study.yaml_file import read_overrides

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
OverridesOption = Annotated[
    Path | None,
    typer.Option("--overrides", metavar="FILE", help="A file of settings, such as `rampline tune` writes; --set wins."),
]


def all_overrides(file: Path | None, assignments: Sequence[str], only: Sequence[str] | None = None) -> dict[str, str]:
    """The settings of a file, and over them those of `--set`, also over those that the file has for one run.

    Raises:
        ConfigError: when one of them is not as it must be, or `--set` is for a run that `--only` leaves out.
    """
    given, kept = parse_overrides(assignments), {*(only or ()), *map(without_seed, only or ())}
    for key in given:
        run, separator, _ = key.rpartition(":")
        if separator and kept and run not in kept:
            raise ConfigError(f"--set {key} has no effect: --only leaves run {run} out")
    of_file = read_overrides(file) if file else {}
    # A key for one run would be laid over the same key for every run.
    return {key: value for key, value in of_file.items() if key.rpartition(":")[2] not in given} | given
