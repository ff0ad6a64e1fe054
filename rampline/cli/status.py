"""`rampline status`: whether the servers and the worker of `rampline up` are there."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from rampline.home import Home
from rampline.links import shorten
from rampline.servers.secret import sign_in_lines
from rampline.servers.status import Part, look


def status() -> None:
    """Show each process of `rampline up`: address, process id, since when, log; exit status 1 if one is not well."""
    home, console = Home.from_environment(), Console(highlight=False, soft_wrap=True)
    parts = look(home)
    if not parts:
        console.print(f"nothing is up in {home.root}: `rampline up` starts it", markup=False)
        raise typer.Exit(1)
    for part in parts:
        condition = Text(f"{part.condition:<11}", style="green" if part.is_well else "red")
        console.print(Text(f"{part.name:<9}"), condition, part.where, *_details(part), sep="")
    if console.is_terminal:
        for line in sign_in_lines(home, with_secret=True):
            console.print(line, markup=False)
    if not all(part.is_well for part in parts):
        raise typer.Exit(1)


def _details(part: Part) -> list[str]:
    """What there is of a process that runs."""
    found = [f"process {part.pid}" if part.pid else "", f"since {part.since}" if part.since else ""]
    found += [f"log {shorten(Path(part.log))}" if part.log else ""]
    return [f", {text}" for text in found if text]
