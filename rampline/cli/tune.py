"""`rampline tune STUDY --run NAME`: short measured trials find the settings with which a run is fast here."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rampline.cli.arguments import SetOption, StudyArgument
from rampline.config import DataConfig, RunConfig, parse_overrides
from rampline.home import Home
from rampline.stages import check_study
from rampline.study import load_study
from rampline.tuning.overrides import write_overrides

if TYPE_CHECKING:
    from rampline.tuning.outcome import Outcome
    from rampline.tuning.space import Limits

# Of a preparation, before it is extrapolated.
WARM_UP_SECONDS = 2.0

BudgetOption = Annotated[float, typer.Option("--budget", min=1, metavar="SECONDS", help="Time for all trials.")]
MaxBatchOption = Annotated[
    int | None, typer.Option("--max-batch", min=1, metavar="IMAGES", help="Largest per-replica batch that is tried.")
]
AllowBatchOption = Annotated[
    bool, typer.Option("--allow-batch", help="Recommend a faster batch too, and the learning rate that goes with it.")
]
AllowPrecisionOption = Annotated[bool, typer.Option("--allow-precision", help="Recommend a faster precision too.")]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", metavar="FILE", help="Where the recommended settings go, instead of the home."),
]


def tune(
    study: StudyArgument,
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="The run of the study that is tuned.")],
    budget: BudgetOption = 120,
    set_: SetOption = None,
    allow_batch: AllowBatchOption = False,
    allow_precision: AllowPrecisionOption = False,
    max_batch: MaxBatchOption = None,
    output: OutputOption = None,
) -> None:
    """Find the settings with which a run is fast on this machine, by short measured trials."""
    name, config = _read_run(study, run, set_ or [])
    # pandas: a wrong study should be told of before
    from rampline.data.preparation import prepare_dataset
    from rampline.devices import find_devices
    from rampline.tuning.space import Limits
    from rampline.tuning.table import describe_outcome

    home, console = Home.from_environment(), Console(highlight=False, markup=False, soft_wrap=True)
    dataset = prepare_dataset(config.data, home, log=console.print)
    limits = Limits(
        train_examples=dataset.splits["train"],
        has_gpu=bool(find_devices().gpus) and not config.cluster.virtual_devices,
        max_batch=max_batch,
        allow_batch=allow_batch,
        allow_precision=allow_precision,
    )
    folder = home.runs / name / f"tune-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    outcome = _search(folder / run, config, str(dataset.directory), limits, budget, home, console)
    for line in ["", *describe_outcome(outcome, train_examples=limits.train_examples)]:
        console.print(line)
    _write(outcome, [study, *(f"--set={each}" for each in set_ or [])], output or _file(home, name, run), console)
    _log(outcome, name, home, folder.name, console)


def _search(
    folder: Path, config: RunConfig, dataset: str, limits: Limits, seconds: float, home: Home, console: Console
) -> Outcome:
    from rampline.cluster.fork_server import fork_server
    from rampline.tuning.budget import Budget
    from rampline.tuning.session import Session
    from rampline.tuning.tuner import Tuner

    session = Session(
        config=config,
        dataset=dataset,
        budget=Budget(seconds),
        folder=folder,
        prepare=_prepare_within(home),
        log=console.print,
    )
    try:
        with fork_server():
            return Tuner(folder.name, limits, session).tune()
    except KeyboardInterrupt:
        console.print("interrupted: no settings are written")
        raise


def _read_run(study: str, run: str, assignments: Sequence[str]) -> tuple[str, RunConfig]:
    """The study's name, and the settings of the run with what depends on this machine."""
    load_study(study).run(run)
    # For this run alone: another one need not be possible with them.
    given = parse_overrides(assignments).items()
    overrides = {key if ":" in key else f"{run}:{key}": value for key, value in given}
    if load_study(study, overrides=overrides).run(run).starts_from:
        overrides[f"{run}:model.weights"] = "none"  # trials begin with fresh weights: no other run is needed
    checked = check_study(study, [run], overrides)
    return checked.name, checked.run(run).config


def _prepare_within(home: Home) -> Callable[[DataConfig, float], str]:
    """Finds or makes a prepared dataset; one that would take longer than so many seconds is given up."""
    from rampline.data.preparation import prepare_dataset
    from rampline.tuning.session import PreparationTooLong

    def prepare(data: DataConfig, seconds: float) -> str:
        first: list[tuple[float, int]] = []

        def check(done: int, total: int) -> None:
            # From the first images on: the start of the process says nothing about the others.
            first.append((time.monotonic(), done))
            spent, images = time.monotonic() - first[0][0], done - first[0][1]
            del first[1:]
            expected = spent * total / images if images else 0.0
            if spent > WARM_UP_SECONDS and expected > seconds:
                raise PreparationTooLong(f"to prepare its images takes about {expected:.0f} s")

        return str(prepare_dataset(data, home, on_progress=check).directory)

    return prepare


def _file(home: Home, study: str, run: str) -> Path:
    return home.root / "tuning" / study / f"{run}.yaml"


def _write(outcome: Outcome, arguments: Sequence[str], path: Path, console: Console) -> None:
    if not outcome.adopted:
        return
    given = shlex.join(arguments)
    heading = (
        f"Found on {time.strftime('%Y-%m-%d')} by rampline tune {given} --run {outcome.run}: {outcome.before_after}\n"
        f"rampline run {given} --overrides {shlex.quote(str(path))}"
    )
    write_overrides(path, outcome.run, outcome.adopted, heading=heading)
    console.print(f"settings     {path}")
    console.print(f"             {heading.splitlines()[1]}")


def _log(outcome: Outcome, study: str, home: Home, name: str, console: Console) -> None:
    """MLflow may be away: what was measured is on the screen and in the file."""
    from rampline.tracking.store import TrackingError
    from rampline.tuning.record import log_search

    try:
        console.print(f"MLflow       run {log_search(outcome, study, home, name=name)} of experiment {study}")
    except TrackingError as error:
        console.print(f"MLflow       {error}")
