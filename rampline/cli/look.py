"""Looking at a study before and after its runs: `rampline plan`, `data` and `compare`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from rampline.cli.arguments import OnlyOption, OverridesOption, SetOption, StudyArgument, all_overrides
from rampline.cli.console import line_console, make_table, table_console
from rampline.config.learning_rate import describe_schedule
from rampline.errors import InputError
from rampline.imports import importing, locate_own
from rampline.record.home import Home
from rampline.record.units import write_dollars, write_percent
from rampline.study import Study, study_name
from rampline.study.halving import ETA, FIRST_RUNG, describe_rungs
from rampline.study.preflight import check_study

if TYPE_CHECKING:
    from rampline.comparison.runs import Comparison
    from rampline.forecast.plan import PlannedRun

UNKNOWN = "?"
FROM_STUDY = "*"
SOURCES = {"readings": "the readings of `rampline forecast`", "run": "earlier runs with the same settings"}
TEXTS = ("strategy", "processes", "devices")
PLAN_WIDTH = 160


def plan(study: StudyArgument, only: OnlyOption = None, set_: SetOption = None, file: OverridesOption = None) -> None:
    """Show what a study would run: roles, devices, batches, steps, learning rate, expected time and cost."""
    home = Home.from_environment()
    checked = check_study(study, home=home, only=only or [], overrides=all_overrides(file, set_ or [], only))
    from rampline.forecast.plan import plan_study  # brings in pandas: a wrong study should be told of before

    runs = plan_study(checked, home)
    console = table_console(PLAN_WIDTH)
    console.print(f"study {checked.name}: {checked.description}", soft_wrap=True)
    console.print(_table(runs))
    for line in _remarks(checked, runs):
        console.print(line, soft_wrap=True)


def _table(runs: list[PlannedRun]) -> Table:
    shown = [run for run in runs if not run.repeat_of] or runs
    columns = [_figures(run) for run in shown]
    kept = [name for name in columns[0] if any(figures.get(name) for figures in columns)]
    table = make_table("run", *kept, numbers=tuple(name for name in kept if name not in TEXTS))
    for run, figures in zip(shown, columns, strict=True):
        table.add_row(run.name, *(figures.get(name, "") for name in kept))
    return table


def _figures(run: PlannedRun) -> dict[str, str]:
    config = run.config
    most = run.at_most
    figures = {
        "strategy": config.strategy.replace("_", " ") + (", fit" if config.engine == "fit" else ""),
        "processes": run.processes,
        "devices": run.devices,
        "per-replica batch": str(config.per_replica_batch_size),
        "global batch": str(config.global_batch_size),
        "epochs": most + str(config.epochs),
        "steps per epoch": _steps(run),
        "peak LR": f"{config.peak_learning_rate:g}",
        "repeats": f"{config.repeats}" if config.repeats > 1 else "",
        "time": UNKNOWN if run.expected_seconds is None else most + _duration(run.expected_seconds),
        "within": "" if run.quote is None else write_percent(run.quote.wall_factor - 1),
    }
    if config.cluster.price_per_hour is not None:
        figures["cost"] = UNKNOWN if run.expected_cost_usd is None else most + write_dollars(run.expected_cost_usd)
    return figures


def _steps(run: PlannedRun) -> str:
    if run.steps_per_epoch is None:
        return UNKNOWN
    return str(run.steps_per_epoch) + ("" if run.is_prepared else FROM_STUDY)


def _remarks(study: Study, runs: list[PlannedRun]) -> list[str]:
    remarks = [*_with_runs(_set_ups(runs)), *_halving_remarks(study)]
    if any(run.steps_per_epoch is not None and not run.is_prepared for run in runs):
        sizes = sorted({run.train_examples for run in study.runs if run.train_examples})
        images = " or ".join(f"{size:,}" for size in sizes)
        remarks.append(f"{FROM_STUDY} from the {images} training images that the study names, not from prepared data")
    if any(run.steps_per_epoch is None for run in runs):
        remarks.append("steps per epoch: known after `rampline run` has prepared the data")
    if any(run.expected_seconds is None for run in runs):
        remarks.append("time and cost: known after a run with these settings was measured, or by `rampline forecast`")
    if sources := {run.quote.source for run in runs if run.quote}:
        sure = "time and cost: of 10 runs 9 come out within so much of them"
        remarks.append(f"{sure}; from {' and '.join(SOURCES[source] for source in sorted(sources))}")
    remarks += _with_runs(_prices(runs))
    remarks += [
        f"{run.name} starts from the best weights of {run.starts_from}"
        for run in study.runs
        if run.starts_from and not run.repeat_of
    ]
    remarks += [_import_remark(name) for name in sorted({run.config.model.name for run in runs}) if ":" in name]
    times = [run.expected_seconds for run in runs]
    if times and None not in times:
        most = next(filter(None, (run.at_most for run in runs)), "")
        remarks.append(f"expected time: {most}{_duration(sum(time or 0.0 for time in times))}")
    return remarks


def _with_runs(told: Iterable[tuple[str, str]]) -> list[str]:
    """Each remark once, with the names of the runs that it is about."""
    runs: dict[str, list[str]] = {}
    for remark, run in told:
        runs.setdefault(remark, []).append(run)
    return [f"{remark} ({', '.join(names)})" for remark, names in runs.items()]


def _set_ups(runs: list[PlannedRun]) -> Iterator[tuple[str, str]]:
    firsts = [run for run in runs if not run.repeat_of]
    for run in firsts:
        if run.config.learning_rate.schedule != "constant":  # the column of the peak says that
            yield f"learning rate {describe_schedule(run.config)}", run.name
    yield from ((f"stops before its last epoch {run.stops}", run.name) for run in firsts if run.stops)


def _halving_remarks(study: Study) -> list[str]:
    grids = dict.fromkeys(run.halving for run in study.runs if run.halving and not describe_rungs(study, run))
    return [f"grid {grid} stops no run: halving needs two runs and {ETA * FIRST_RUNG} epochs" for grid in grids]


def _prices(runs: list[PlannedRun]) -> Iterator[tuple[str, str]]:
    """Costs are for the machine that a run names, which need not be this one."""
    for run in runs:
        cluster = run.config.cluster
        if cluster.machine is not None and cluster.price_per_hour is not None:
            price = f"${cluster.price_per_hour:g} per hour"
            yield f"cost is for {cluster.machines} x {cluster.machine}, {price}", run.name


def _import_remark(name: str) -> str:
    where = f"imports {name} from {locate_own(name, Path.cwd())}; it runs with your rights in every role process"
    return f"{where}; if it compiles its model, that has its own optimizer, learning rate, loss and metrics"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def compare(study: StudyArgument) -> None:
    """Show the comparison of a study's latest execution again, from MLflow."""
    home = Home.from_environment()
    if not os.environ.get("MLFLOW_TRACKING_URI") and not home.tracking_database.is_file():
        raise InputError(f"there are no runs in {home.root}: `rampline run {study}` makes some")
    show_comparison(find_comparison(study_name(study), home), home, Console())


def find_comparison(study: str, home: Home, parent_run_id: str | None = None) -> Comparison:
    """The comparison of an execution, by default the latest, from MLflow."""
    # They bring in MLflow and pandas: too slow for the other commands.
    with importing():
        from rampline.comparison.runs import read_comparison
        from rampline.tracking.store import open_tracking

        client = open_tracking(home)  # which imports more than it does
    return read_comparison(client, study, parent_run_id, for_report=False)


def show_comparison(comparison: Comparison, home: Home, console: Console) -> None:
    """Print a comparison, where its report is, and how to open it in MLflow."""
    from rampline.comparison.terminal import print_comparison
    from rampline.tracking.pages import how_to_open_mlflow, shorten

    console.print()
    print_comparison(comparison, console)
    console.print()
    report = home.reports / comparison.study / comparison.execution / "report.html"
    if report.is_file():
        console.print(f"report  {shorten(report)}", highlight=False, soft_wrap=True, markup=False)
    runs = home.runs / comparison.study / comparison.execution
    if runs.is_dir():
        console.print(f"runs    {shorten(runs)}", highlight=False, soft_wrap=True, markup=False)
    console.print(f"MLflow  {how_to_open_mlflow(home)}", highlight=False, soft_wrap=True, markup=False)


def data(study: StudyArgument, set_: SetOption = None) -> None:
    """Prepare the data of a study, and show what is in it: counts, sizes, duplicates, leaks, and a page of pictures."""
    home, console = Home.from_environment(), line_console()
    checked = check_study(study, home=home, overrides=all_overrides(None, set_ or []))
    # pandas: a wrong study should be told of before
    from rampline.comparison.data_section import write_data_page
    from rampline.data.preparation import prepare_dataset
    from rampline.data.quality import read_report
    from rampline.tracking.pages import shorten

    said: list[str] = []

    def say(line: str) -> None:
        """Preparing tells the counts of what it makes."""
        if line not in said:
            console.print(line)
        said.append(line)

    # Some differ only in how they are fed.
    prepared = [prepare_dataset(config, home, log=say) for config in checked.data]
    for dataset in {dataset.directory: dataset for dataset in prepared}.values():
        report = read_report(dataset.directory)
        for line in [*report.count_lines(), *report.duplicate_lines()]:
            say(line)
        page = home.reports / checked.name / "data" / f"{dataset.directory.name}.html"
        write_data_page(dataset, report, page)
        console.print(f"page    {shorten(page)}")
