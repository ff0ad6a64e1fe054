"""What there is: `rampline studies`, `models` and `nodes`; and a project to begin with, `rampline init`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rampline.cli.console import line_console, make_table, table_console
from rampline.config import RunConfig
from rampline.config.choices import MODELS
from rampline.config.keras_names import APPLICATIONS, keras_names
from rampline.config.sections import Launcher
from rampline.config.setting import check
from rampline.errors import InputError
from rampline.files import write_text
from rampline.jobs.local import run_without_gpu
from rampline.record.units import GIBIBYTE
from rampline.study import Study, built_in_studies, load_study
from rampline.study.definition import make_name

if TYPE_CHECKING:
    from rampline.jobs.launcher import Node


def models(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Build these alone, with the installed Keras.")
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(min=8, help="Of named ones: height and width of an image; by default those of their weights."),
    ] = None,
) -> None:
    """List the networks that come with Rampline and Keras, and how large they are."""
    applications = sorted(keras_names("applications", APPLICATIONS), key=str.lower)
    # Keras keeps weights that it has downloaded there.
    cache = os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras")
    cached = cached_weights(Path(cache) / "models", applications)
    for name in names or ():
        allowed = "one of those that `rampline models` lists"
        check(name in MODELS or name in applications, "model.name", name, allowed)
    if names:
        arguments = {"names": names, "image_size": image_size}
        sizes = run_without_gpu("networks", "the process that builds networks", arguments)
    elif image_size:
        raise InputError("--image-size needs the names of the networks that are to be built for it")
    else:
        known = json.loads(files("rampline.config").joinpath("networks.json").read_text(encoding="utf-8"))
        sizes = [{"name": name, **known.get(name, {})} for name in (*MODELS, *applications)]
    figures = ("parameters", "image", "memory per image")
    table = make_table("network", *figures, "ImageNet weights", numbers=figures)
    for found in sizes:
        # Of a network that is newer than the file, nothing.
        told = [""] * 3
        if "parameters" in found:
            memory = f"{found['bytes_per_image'] / 2**20:.1f} MiB"
            told = [f"{found['parameters']:,}", f"{found['image_size']} px", memory]
        weights = "here" if found["name"] in cached else "to be downloaded"
        table.add_row(found["name"], *told, "" if found["name"] in MODELS else weights)
    console = table_console()
    console.print(table)
    if not names:
        console.print("; ".join(f"{name}: {model.about}" for name, model in MODELS.items()))
        console.print("the others are of keras.applications: a backbone, which gets a head; `model.name` may also be a")
        console.print("function of yours, package.module:function")
    console.print("memory per image: what all layers put out for it in training, an estimate from the built network;")
    console.print("weights, gradients and Adam's moments take 16 bytes a parameter besides")


def cached_weights(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Files of weights without the top that Keras has downloaded, by the network; each file is of the longest name."""
    found = {}
    for file in sorted(folder.glob("*.h5")):
        plain = re.sub(r"[^a-z0-9]", "", file.name.lower())
        fits = [name for name in names if name.lower() in plain]
        if fits and "notop" in plain:
            found[max(fits, key=len)] = file.name
    return found


def studies(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="Show all about one: its name, or the path of a study file.")
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of study files, for an editor.")
    ] = False,
) -> None:
    """List the studies that come with Rampline, or show one: what it teaches, its runs, what others have measured."""
    if schema:
        from rampline.study.schema import study_schema

        line_console().print(json.dumps(study_schema(), indent=2))
        return
    console = table_console()
    if study is not None:
        _print_card(load_study(study), console)
        return
    table = make_table("study", "runs", "teaches", "takes", numbers=("runs",))
    for each in map(load_study, built_in_studies()):
        runs, teaches = str(len(each.first_trainings)), each.teaches or each.description
        table.add_row(each.name, runs, teaches, each.expected_hours)
    console.print(table)
    console.print("`rampline studies STUDY` shows one, `rampline plan STUDY` what would run here")


def _print_card(study: Study, console: Console) -> None:
    card = Table.grid(padding=(0, 2))
    for title, text in _card(study).items():
        if text:
            card.add_row(Text(title, style="dim"), Text(text))
    console.print(card)
    console.print(_runs_table(study))
    if metrics := study.published_metrics:
        console.print(Text("published by others, on other hardware"))
        table = make_table("run", *metrics, numbers=metrics)
        for run in study.first_trainings:
            if run.published:
                table.add_row(run.name, *(f"{run.published[m]:g}" if m in run.published else "" for m in metrics))
        console.print(table)


def _card(study: Study) -> dict[str, str]:
    deadline = "" if study.deadline_hours is None else f", in {study.deadline_hours:g} hours at most"
    accuracy = f"whose accuracy is at most {study.accuracy_tolerance:g} below that of the most accurate one"
    return {
        study.name: study.description,
        "teaches": study.teaches,
        "hardware": study.hardware,
        "takes": study.expected_hours,
        "recommends": f"the cheapest and the fastest run {accuracy}{deadline}",
        "prices": "\n".join(f"{machine}: ${price:g} per hour" for machine, price in study.prices.items()),
        "published in": study.published_source,
    }


def _runs_table(study: Study) -> Table:
    table = make_table(
        "run", "strategy", "replicas", "global batch", "description", numbers=("replicas", "global batch")
    )
    for run in study.first_trainings:
        config = run.config
        strategy = config.strategy.replace("_", " ") + (", fit" if config.engine == "fit" else "")
        name = f"{run.name} (reference)" if run.name == study.reference else run.name
        table.add_row(name, strategy, str(config.replicas), str(config.global_batch_size), run.description)
    return table


def nodes(launcher: Annotated[Launcher, typer.Option(help="Whose machines.")] = "local") -> None:
    """List the machines that a launcher has, with what of them is free."""
    from rampline.jobs.launchers import LAUNCHERS

    columns = [_resources(node) for node in LAUNCHERS[launcher](RunConfig()).nodes()]
    told = [name for name in columns[0] if any(column[name] for column in columns)] if columns else []
    table = make_table(*(told or ["node"]), numbers=("cores", "free cores", "GPUs", "free GPUs", "memory"))
    for column in columns:
        table.add_row(*(column[name] for name in told))
    table_console().print(table)


def _resources(node: Node) -> dict[str, str]:
    return {
        "node": node.name,
        "state": node.state,
        "cores": str(node.cores),
        "free cores": "" if node.free_cores is None else str(node.free_cores),
        "GPUs": str(node.gpus),
        "free GPUs": str(node.free_gpus) if node.gpus and node.free_gpus is not None else "",
        "kind": node.gpu_kind,
        "memory": "" if node.memory_bytes is None else f"{node.memory_bytes / GIBIBYTE:.0f} GiB",
        "groups": ", ".join(node.groups),
    }


def init(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder; made if it is not there.")]) -> None:
    """Write a small project of one's own: a study, its network, a test and a deployment."""
    templates = sorted((each for each in files("rampline").joinpath("project").iterdir() if each.is_file()), key=str)
    existing = next(each for each in (folder, *folder.parents) if os.path.lexists(each))
    if not existing.is_dir():
        raise InputError(f"{existing} is no folder: choose another one")
    if there := [each.name for each in templates if (folder / each.name).exists()]:
        raise InputError(f"{folder} has {', '.join(there)} already: choose another folder")
    # The study is told from the others in the same home by the folder's name.
    name = make_name(folder.resolve().name) or "my-project"
    name += "-project" if name in built_in_studies() else ""
    console = line_console()
    for template in templates:
        write_text(folder / template.name, template.read_text(encoding="utf-8").replace("my-project", name))
        console.print(f"wrote {folder / template.name}")
    console.print(f"now: cd {shlex.quote(str(folder))} && rampline run study.yaml")
