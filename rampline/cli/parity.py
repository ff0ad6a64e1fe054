"""`rampline parity STUDY --run NAME`: whether a run's replicas train as one would; trains nothing."""

from __future__ import annotations

import dataclasses
import secrets
import time
from typing import Annotated

import typer
from rich.console import Console

from rampline.cli.arguments import SetOption, StudyArgument
from rampline.cluster.fork_server import fork_server
from rampline.config import ParityConfig, RunConfig, apply_overrides, from_dict, parse_overrides, to_dict
from rampline.home import Home
from rampline.parity import ParityResult, check_parity, result_file
from rampline.run_directory import RunDirectory, RunIdentity
from rampline.study import load_study

FAILED = 1


def parity(
    study: StudyArgument,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="The run of the study that is checked.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps that are compared; parity.steps.")] = None,
    set_: SetOption = None,
) -> None:
    """Train a few steps of a run on its strategy and on one replica, and compare losses and all variables."""
    from rampline.data.preparation import prepare_dataset  # pandas: a wrong study should be told of before
    from rampline.devices import check_devices, resolve_virtual_devices

    loaded, home = load_study(study), Home.from_environment()
    overrides = parse_overrides(set_ or []) | ({"parity.steps": str(steps)} if steps else {})
    config = resolve_virtual_devices(from_dict(apply_overrides(to_dict(loaded.run(run).config), overrides)))
    check_devices(config)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    config = _checkable(config, console)
    dataset = prepare_dataset(config.data, home, log=console.print)
    name = f"parity-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    directory = RunDirectory(home.runs / loaded.name / name / run)
    directory.create(config, RunIdentity(study=loaded.name, name=run, dataset=str(dataset.directory)))
    with fork_server():
        result = check_parity(directory, log=console.print)
    for line in describe_parity(result):
        console.print(line)
    console.print(f"result   {result_file(directory)}")
    if not result.passed:
        raise typer.Exit(FAILED)


def describe_parity(result: ParityResult) -> list[str]:
    """What a person should read of a result, line by line."""
    lines = [f"parity   {result.status.replace('_', ' ')}" + (f": {result.reason}" if result.reason else "")]
    if result.reference_losses:
        last = result.first_step + result.steps
        lines.append(f"steps    {result.first_step + 1} to {last}, global batch {result.global_batch_size}")
        within = f"(rounding: up to {result.tolerance:g}, {result.precision})"
        lines.append(f"loss     differs by {_figure(result.max_loss_diff)} at most {within}")
        lines.append(f"weights  differ by {_figure(result.max_weight_diff)} at most, in {result.worst_variable}")
    if result.mean_staleness is not None:
        lines.append(f"stale    {result.mean_staleness:.2f} updates on average, {result.max_staleness} at most")
    lines += [f"left out {layer.count} x {layer.layer}: {layer.why}" for layer in result.neutralised]
    lines += [f"note     {note}" for note in result.notes]
    return [*lines, f"took     {result.seconds:.1f} s"]


def _figure(value: float | None) -> str:
    return "a figure that is not finite" if value is None else f"{value:.2g}"


def _checkable(config: RunConfig, console: Console) -> RunConfig:
    if not config.parity.steps:
        config = dataclasses.replace(config, parity=ParityConfig())
    if config.model.weights.startswith("run:"):
        origin = f"model.weights={config.model.weights}"
        console.print(f"note     {origin}: the check starts from fresh weights, that run is not trained here")
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, weights="none"))
    return config
