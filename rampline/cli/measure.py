"""What measures without training a study: `rampline parity`, `explain`, `forecast` and `tune`."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from rampline.cli.arguments import OnlyOption, OverridesOption, SetOption, StudyArgument, all_overrides
from rampline.cli.console import line_console, make_table, table_console
from rampline.config import DataConfig, ExplainConfig, ParityConfig, RunConfig, parse_overrides
from rampline.errors import ConfigError, InputError, RunFailed
from rampline.jobs.fork_server import fork_server
from rampline.parity.check import ParityResult, check_parity, result_file
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.record.units import write_dollars, write_duration, write_percent, write_quantity, write_range, write_ratio
from rampline.study import Study, load_study
from rampline.study.execution_file import Execution, new_execution
from rampline.study.preflight import check_study
from rampline.study.yaml_file import write_overrides

if TYPE_CHECKING:
    from rampline.data.dataset import PreparedDataset
    from rampline.explain.explanation import Explanation
    from rampline.forecast.forecast import Forecast
    from rampline.forecast.machine_types import MachineType
    from rampline.tuning.outcome import Outcome
    from rampline.tuning.trial import Limits


def parity(
    study: StudyArgument,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="The run of the study that is checked.")],
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps that are compared; parity.steps.")] = None,
    set_: SetOption = None,
) -> None:
    """Train a few steps of a run on its strategy and on one replica, and compare losses and all variables."""
    checked, origin = _read_run(study, run, [*(set_ or []), *([f"parity.steps={steps}"] if steps else [])])
    home, console = Home.from_environment(), line_console()
    if origin:
        also = "the check starts from fresh weights, that run is not trained here"
        console.print(f"note     model.weights=run:{origin}: {also}")
    config = checked.run(run).config
    if not config.parity.steps:
        config = dataclasses.replace(config, parity=ParityConfig())
    with fork_server():
        dataset = _prepare(checked, home, console.print)[config.data]
        name = f"parity-{new_execution()}"
        directory = RunDirectory(home.runs / checked.name / name / run)
        directory.create(config, RunIdentity(study=checked.name, name=run, dataset=str(dataset.directory)))
        result = check_parity(directory, log=console.print)
    for line in describe_parity(result):
        console.print(line)
    console.print(f"result   {result_file(directory)}")
    if not result.passed:
        raise typer.Exit(1)


def _prepare(study: Study, home: Home, log: Callable[[str], None]) -> dict[DataConfig, PreparedDataset]:
    """The data of a study, whose own models are checked before and after."""
    from rampline.data.preparation import prepare_dataset  # pandas: a wrong study should be told of before
    from rampline.training.model_contract import checked_models

    with checked_models(study, log=log):
        return {data: prepare_dataset(data, home, log=log) for data in study.data}


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


WIDTH_WITHOUT_TERMINAL = 140


def explain(
    study: StudyArgument,
    only: OnlyOption = None,
    set_: SetOption = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure now: one epoch of each run on this machine, in a folder of its own."),
    ] = False,
) -> None:
    """Show where the time of a study's latest execution went, run by run, or measure it now."""
    home, console = Home.from_environment(), table_console(WIDTH_WITHOUT_TERMINAL)
    if measure:
        checked = check_study(load_study(study, only=only or [], overrides=all_overrides(None, set_ or [], only)), home)
        folder = _measure(checked, home, console)
    elif set_:
        raise ConfigError("--set changes what is measured: it goes with --measure")
    elif execution := Execution.latest(load_study(study).name, home):
        folder = execution.folder
    else:
        raise InputError(f"study {study} has no execution in {home.runs}: `rampline run {study}`, or add --measure")
    explanations = _read(folder, only or [])
    if not explanations:
        raise InputError(
            f"no run of {folder} was probed (explain.steps=0?): `rampline explain {study} --measure` does it"
        )
    _show(explanations, console)


def _measure(study: Study, home: Home, console: Console) -> Path:
    from rampline.explain.explanation import explain_run
    from rampline.explain.replica import measure_replicas
    from rampline.jobs.supervisor import supervise

    def log(line: str) -> None:
        console.print(line, soft_wrap=True)

    study = dataclasses.replace(study, runs=study.first_trainings)  # one replica of a repeat does the same work
    name = f"explain-{new_execution()}"
    folder, directories = home.runs / study.name / name, []
    with fork_server():
        datasets = _prepare(study, home, log)
        for run in study.runs:
            config = dataclasses.replace(
                run.config, epochs=1, model=dataclasses.replace(run.config.model, weights="none")
            )
            if not config.explain.steps:
                config = dataclasses.replace(config, explain=ExplainConfig())
            directory = RunDirectory(folder / run.name)
            dataset = str(datasets[config.data].directory)
            directory.create(config, RunIdentity(study=study.name, name=run.name, dataset=dataset))
            log(f"{run.name}: one epoch and its probes")
            supervise(directory, on_event=lambda event: None, log=log)
            if directory.probes_file.is_file():
                directories.append(directory)
            else:
                log(f"{run.name}: not probed, because it ended with fewer workers than cluster.workers")
        try:
            measure_replicas(directories, folder / "explain", log=log)
        except RunFailed as error:
            log(f"warning: where a step's time goes is known in part only: {error}")
    for directory in directories:
        explain_run(directory).write(directory.explanation_file)
    return folder


def _read(folder: Path, only: list[str]) -> dict[str, Explanation]:
    from rampline.explain.explanation import Explanation

    files = sorted(folder.glob("*/explanation.json"), key=lambda file: (file.parent / "run.json").stat().st_mtime)
    found = {file.parent.name: Explanation.read(file) for file in files}
    for name in only:
        if name not in found:
            raise InputError(f"run {name} of {folder} is not explained: there are {', '.join(found) or 'none'}")
    return {name: explanation for name, explanation in found.items() if not only or name in only}


def _show(explanations: dict[str, Explanation], console: Console) -> None:
    from rampline.explain.explanation import NOISE_NOTE, RUN_PARTS, STEP_PARTS, table_of_parts

    steps = {name: dataclasses.asdict(explanation.step) for name, explanation in explanations.items()}
    runs = {name: dataclasses.asdict(explanation.run) for name, explanation in explanations.items()}
    noise = {name: explanation.noise for name, explanation in explanations.items()}
    for title, parts, rows, noisy in (
        ("milliseconds of one training step", STEP_PARTS, steps, noise),
        ("seconds of the whole run", RUN_PARTS, runs, {}),
    ):
        head, *texts = table_of_parts(parts, rows, noisy)
        table = make_table(*head, numbers=head[1:], title=title)
        for text in texts:
            table.add_row(*text)
        console.print(table)
    if any(noise.values()):
        console.print(Text(NOISE_NOTE, style="dim"))
    for name, explanation in explanations.items():
        console.print(Text(f"{name}: ", style="bold") + Text(explanation.verdict.sentence))


def forecast(
    study: StudyArgument,
    only: OnlyOption = None,
    set_: SetOption = None,
    file: OverridesOption = None,
    on: Annotated[
        Path | None,
        typer.Option("--on", metavar="FILE", help="A file of machine types: what the runs would take on each of them."),
    ] = None,
) -> None:
    """Measure about a minute per network, and tell what each run would take, with the interval of 90 %."""
    home, console = Home.from_environment(), line_console()
    checked = check_study(load_study(study, only=only or [], overrides=all_overrides(file, set_ or [], only)), home)
    from rampline.forecast.forecast import Calibration
    from rampline.forecast.machine_types import read_machine_types
    from rampline.forecast.quote import from_readings, take_readings

    machines = read_machine_types(on) if on else {}
    with fork_server():
        datasets = _prepare(checked, home, console.print)
        runs = {run.name: run.config for run in checked.first_trainings}
        take_readings([(config, datasets[config.data]) for config in runs.values()], home, log=console.print)
    calibration = Calibration.of(home)
    for title, machine in {"on this machine": None, **machines}.items():
        found = {name: from_readings(home, config, datasets[config.data], machine) for name, config in runs.items()}
        forecasts = {name: calibration.applied(each) for name, each in found.items() if each}
        for name in [*forecasts] if machine else ():
            if shortage := machine.shortage(runs[name].cluster.replicas):
                del forecasts[name]
                console.print(f"not forecast on {title}: {name}: {shortage}")
        _show_forecasts(title, runs, forecasts, checked.reference, machine)
    earlier = f"{len(calibration.errors)} earlier forecasts of this home"
    console.print(f"within: of 10 runs 9 come out so near; from the spread of the readings and the errors of {earlier}")


def _show_forecasts(
    title: str,
    runs: Mapping[str, RunConfig],
    forecasts: Mapping[str, Forecast],
    reference: str,
    machine: MachineType | None,
) -> None:
    from rampline.forecast.forecast import faster

    figures = ("replicas", "per-replica batch", "images/s", "epoch", "speed within")
    figures += ("wall time", "cost", "time within", "speed-up")
    table = make_table("run", *figures, "bound by", numbers=figures, title=title)
    for name, found in forecasts.items():
        config, price = runs[name], runs[name].cluster.price_per_hour
        if machine:
            price = machine.price_of(workers=config.cluster.workers, replicas=config.cluster.replicas)
        gain = faster(found, forecasts[reference]) if reference in forecasts and name != reference else None
        table.add_row(
            name,
            str(config.replicas),
            str(config.per_replica_batch_size),
            write_quantity(found.images_per_second),
            write_duration(found.epoch_seconds),
            write_percent(found.factor - 1),
            write_duration(found.wall_seconds),
            "" if price is None else write_dollars(found.cost_usd(price) or 0.0),
            write_percent(found.wall_factor - 1),
            "" if gain is None else write_range(*gain, write_ratio),
            found.bound,
        )
    table_console(WIDTH_WITHOUT_TERMINAL).print(table)


def tune(
    study: StudyArgument,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="The run of the study that is tuned.")],
    budget: Annotated[float, typer.Option("--budget", min=1, metavar="SECONDS", help="Time for all trials.")] = 120,
    set_: SetOption = None,
    allow_batch: Annotated[
        bool,
        typer.Option("--allow-batch", help="Recommend a faster batch too, and the learning rate that goes with it."),
    ] = False,
    allow_precision: Annotated[
        bool, typer.Option("--allow-precision", help="Recommend a faster precision too.")
    ] = False,
    max_batch: Annotated[
        int | None,
        typer.Option("--max-batch", min=1, metavar="IMAGES", help="Largest per-replica batch that is tried."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Where the recommended settings go, instead of the home."),
    ] = None,
) -> None:
    """Find the settings with which a run is fast on this machine, by short measured trials."""
    checked, _ = _read_run(study, run, set_ or [])
    from rampline.jobs.launchers import gpus_of_machine
    from rampline.tuning.outcome import describe_outcome
    from rampline.tuning.trial import Limits

    name, config = checked.name, checked.run(run).config
    home, console = Home.from_environment(), line_console()
    dataset = _prepare(checked, home, console.print)[config.data]
    limits = Limits(
        train_examples=dataset.splits["train"],
        has_gpu=bool(gpus_of_machine(config)) and not config.cluster.virtual_devices,
        max_batch=max_batch,
        allow_batch=allow_batch,
        allow_precision=allow_precision,
    )
    folder = home.runs / name / f"tune-{new_execution()}"
    outcome = _search(folder / run, config, str(dataset.directory), limits, budget, console)
    for line in ["", *describe_outcome(outcome, train_examples=limits.train_examples)]:
        console.print(line)
    path = output or home.root / "tuning" / name / f"{run}.yaml"
    _write(outcome, [study, *(f"--set={each}" for each in set_ or [])], path, console)
    _log(outcome, name, home, folder.name, console)


def _search(folder: Path, config: RunConfig, dataset: str, limits: Limits, seconds: float, console: Console) -> Outcome:
    from rampline.tuning.tuner import Tuner

    tuner = Tuner(
        run=folder.name,
        config=config,
        dataset=dataset,
        limits=limits,
        seconds=seconds,
        folder=folder,
        log=console.print,
    )
    try:
        with fork_server():
            return tuner.tune()
    except KeyboardInterrupt:
        console.print("interrupted: no settings are written")
        raise


def _read_run(study: str, run: str, assignments: Sequence[str]) -> tuple[Study, str | None]:
    """The study of this run alone, checked, with fresh weights; and the run whose weights it otherwise starts from."""
    listed = load_study(study).run(run).listed
    # For this run alone: another one need not be possible with them.
    given = parse_overrides(assignments).items()
    overrides = {key if ":" in key else f"{listed}:{key}": value for key, value in given}
    origin = load_study(study, overrides=overrides).run(run).starts_from
    if origin:
        overrides[f"{listed}:model.weights"] = "none"  # no other run is needed
    return check_study(load_study(study, only=[run], overrides=overrides), Home.from_environment()), origin


def _write(outcome: Outcome, arguments: Sequence[str], path: Path, console: Console) -> None:
    if not outcome.adopted:
        return
    given = shlex.join(arguments)
    heading = (
        f"Found on {time.strftime('%Y-%m-%d')} by rampline tune {given} --run {outcome.run}: {outcome.before_after}\n"
        f"rampline run {given} --overrides {shlex.quote(str(path))}"
    )
    write_overrides(path, load_study(arguments[0]).run(outcome.run).listed, outcome.adopted, heading=heading)
    console.print(f"settings     {path}")
    console.print(f"             {heading.splitlines()[1]}")


def _log(outcome: Outcome, study: str, home: Home, name: str, console: Console) -> None:
    """MLflow may be away: what was measured is on the screen and in the file."""
    from rampline.tracking.store import TrackingError
    from rampline.tuning.outcome import log_search

    try:
        console.print(f"MLflow       run {log_search(outcome, study, home, name=name)} of experiment {study}")
    except TrackingError as error:
        console.print(f"MLflow       {error}")
