"""`rampline models`: the networks that `model.name` may name."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rampline.config.choices import MODELS
from rampline.config.keras_names import APPLICATIONS, keras_names
from rampline.config.setting import check
from rampline.errors import RunFailed
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.local import LOCAL

# Keras keeps weights that it has downloaded there.
_CACHE = Path("~/.keras").expanduser()
HERE, NOT_HERE = "here", "to be downloaded"
LIST_WIDTH = 120


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Build these, and tell how large they are.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(min=8, help="Height and width of an image; by default that of the network's weights.")
    ] = None,
) -> None:
    """List the networks that come with Rampline and Keras, or tell how large some of them are."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=LIST_WIDTH, highlight=False)
    applications = sorted(keras_names("applications", APPLICATIONS), key=str.lower)
    cached = cached_weights(Path(os.environ.get("KERAS_HOME", _CACHE)) / "models", applications)
    if not names:
        _print_list(console, applications, cached)
        return
    for name in names:
        allowed = "one of those that `rampline models` lists"
        check(name in MODELS or name in applications, "model.name", name, allowed)
    table = _make_table("network", "parameters", "image", "memory per image", "ImageNet weights", numbers=(1, 2, 3))
    for found in _measure(names, image_size):
        memory = f"{found['bytes_per_image'] / 2**20:.1f} MiB"
        weights = "" if found["name"] in MODELS else _where(found["name"], cached)
        table.add_row(found["name"], f"{found['parameters']:,}", f"{found['image_size']} px", memory, weights)
    console.print(table)
    console.print("memory per image: what all layers put out for it in training, an estimate from the built network;")
    console.print("weights, gradients and Adam's moments take 16 bytes a parameter besides")


def _print_list(console: Console, applications: Sequence[str], cached: Mapping[str, str]) -> None:
    table = _make_table("network", "what it is", "ImageNet weights")
    for name, model in MODELS.items():
        table.add_row(name, model.about, "")
    for name in applications:
        table.add_row(name, "of keras.applications: a backbone with a head", _where(name, cached))
    console.print(table)
    console.print("`rampline models NAME …` builds networks and tells how large they are; `model.name` may also be a")
    console.print("function of yours, package.module:function")


def _where(name: str, cached: Mapping[str, str]) -> str:
    return HERE if name in cached else NOT_HERE


def cached_weights(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Files of weights without the top that Keras has downloaded, by the network; each file is of the longest name."""
    found = {}
    for file in sorted(folder.glob("*.h5")):
        plain = re.sub(r"[^a-z0-9]", "", file.name.lower())
        fits = [name for name in names if name.lower() in plain]
        if fits and "notop" in plain:
            found[max(fits, key=len)] = file.name
    return found


def _measure(names: Sequence[str], image_size: int | None) -> list[dict[str, Any]]:
    from rampline.training.model_contract import NO_GPU  # brings in pandas

    with tempfile.TemporaryDirectory() as folder:
        job = Job(
            function="networks",
            what="the process that builds networks",
            folder=Path(folder),
            arguments={"names": list(names), "image_size": image_size},
            environment=NO_GPU,
        )
        try:
            return run_job(job, launcher=LOCAL)
        except JobFailed as failure:
            raise RunFailed(f"{failure.label} {failure.how}") from failure


def _make_table(*titles: str, numbers: Sequence[int] = ()) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    for place, title in enumerate(titles):
        table.add_column(title, justify="right" if place in numbers else "left", no_wrap=True)
    return table
