"""`rampline init DIR`: a small project of one's own."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from rampline.errors import InputError
from rampline.files import write_text


def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; made if it is not there.")]) -> None:
    """Write a small project of one's own: a study, its network, a test and a deployment."""
    templates = sorted((each for each in files("rampline").joinpath("project").iterdir() if each.is_file()), key=str)
    if there := [each.name for each in templates if (folder / each.name).exists()]:
        raise InputError(f"{folder} has {', '.join(there)} already: choose another folder")
    for template in templates:
        write_text(folder / template.name, template.read_text(encoding="utf-8"))
        typer.echo(f"wrote {folder / template.name}")
    typer.echo(f"now: cd {folder} && rampline run study.yaml")
