"""`rampline plan STUDY`: what would run; starts nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rampline.cli.arguments import OnlyOption, OverridesOption, SetOption, StudyArgument, all_overrides
from rampline.home import Home
from rampline.imports import locate_own
from rampline.learning_rate import describe_schedule
from rampline.stages import check_study
from rampline.study import Study

if TYPE_CHECKING:
    from rampline.plan import PlannedRun

UNKNOWN = "?"
FROM_STUDY = "*"
TEXTS = ("strategy", "processes", "devices")
WIDTH_WITHOUT_TERMINAL = 160


def plan(study: StudyArgument, only: OnlyOption = None, set_: SetOption = None, file: OverridesOption = None) -> None:
    """Show what a study would run: roles, devices, batches, steps, learning rate, expected time and cost."""
    checked = check_study(study, only or [], all_overrides(file, set_ or []))
    from rampline.plan import plan_study  # brings in pandas: a wrong study should be told of before

    runs = plan_study(checked, Home.from_environment())
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    console.print(f"study {checked.name}: {checked.description}", highlight=False, markup=False, soft_wrap=True)
    console.print(_table(runs))
    for line in _remarks(checked, runs):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(runs: list[PlannedRun]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("run", style="bold", no_wrap=True)
    columns = [_figures(run) for run in runs]
    for name in columns[0]:
        table.add_column(name, justify="left" if name in TEXTS else "right")
    for run, figures in zip(runs, columns, strict=True):
        table.add_row(run.name, *figures.values())
    return table


def _figures(run: PlannedRun) -> dict[str, str]:
    config = run.config
    figures = {
        "strategy": config.strategy.replace("_", " ") + (", fit" if config.engine == "fit" else ""),
        "processes": run.processes,
        "devices": run.devices,
        "per-replica batch": str(config.per_replica_batch_size),
        "global batch": str(config.global_batch_size),
        "epochs": str(config.epochs),
        "steps per epoch": _steps(run),
        "peak LR": f"{config.peak_learning_rate:g}",
        "time": UNKNOWN if run.expected_seconds is None else _duration(run.expected_seconds),
    }
    if config.cluster.price_per_hour is not None:
        figures["cost"] = UNKNOWN if run.expected_cost_usd is None else f"${run.expected_cost_usd:.2f}"
    return figures


def _steps(run: PlannedRun) -> str:
    if run.steps_per_epoch is None:
        return UNKNOWN
    return str(run.steps_per_epoch) + ("" if run.is_prepared else FROM_STUDY)


def _remarks(study: Study, runs: list[PlannedRun]) -> list[str]:
    remarks = _schedule_remarks(runs)
    if any(run.steps_per_epoch is not None and not run.is_prepared for run in runs):
        sizes = sorted({run.train_examples for run in study.runs if run.train_examples})
        images = " or ".join(f"{size:,}" for size in sizes)
        remarks.append(f"{FROM_STUDY} from the {images} training images that the study names, not from prepared data")
    if any(run.steps_per_epoch is None for run in runs):
        remarks.append("steps per epoch: known after `rampline run` has prepared the data")
    if any(run.expected_seconds is None for run in runs):
        remarks.append("time and cost: known after a run with these settings was measured")
    remarks += _price_remarks(runs)
    remarks += [
        f"{run.name} starts from the best weights of {run.starts_from}" for run in study.runs if run.starts_from
    ]
    remarks += [_import_remark(name) for name in sorted({run.config.model.name for run in runs}) if ":" in name]
    times = [run.expected_seconds for run in runs]
    if times and None not in times:
        remarks.append(f"expected training time: {_duration(sum(time or 0.0 for time in times))}")
    return remarks


def _schedule_remarks(runs: list[PlannedRun]) -> list[str]:
    by_schedule: dict[str, list[str]] = {}
    for run in runs:
        if run.config.learning_rate.schedule != "constant":  # the column of the peak says that
            by_schedule.setdefault(describe_schedule(run.config), []).append(run.name)
    return [f"learning rate {schedule} ({', '.join(names)})" for schedule, names in by_schedule.items()]


def _price_remarks(runs: list[PlannedRun]) -> list[str]:
    """Costs are for the machine that a run names, which need not be this one."""
    by_machine: dict[str, list[str]] = {}
    for run in runs:
        cluster = run.config.cluster
        if cluster.machine is not None and cluster.price_per_hour is not None:
            priced = f"{cluster.machines} x {cluster.machine}, ${cluster.price_per_hour:g} per hour"
            by_machine.setdefault(priced, []).append(run.name)
    return [f"cost is for {priced} ({', '.join(names)})" for priced, names in by_machine.items()]


def _import_remark(name: str) -> str:
    return f"imports {name} from {locate_own(name, Path.cwd())}; it runs with your rights in every role process"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
