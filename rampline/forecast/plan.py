"""What a study would run, worked out without starting or writing anything; and what people are told of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rampline.config import RunConfig
from rampline.config.learning_rate import describe_schedule
from rampline.forecast.forecast import UNREADABLE, Calibration, Forecast
from rampline.forecast.quote import quote_run
from rampline.imports import locate_own
from rampline.jobs.launchers import gpus_of_machine
from rampline.jobs.roles import role_counts
from rampline.parity.check import ParityResult, result_file
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.record.units import write_dollars, write_duration, write_percent
from rampline.study import Study, StudyRun
from rampline.study.execution_file import find_executions
from rampline.study.halving import ETA, FIRST_RUNG, describe_rungs
from rampline.training.early_stop import describe_stop, time_limit

UNKNOWN = "?"
FROM_STUDY = "*"
SOURCES = {"readings": "the readings of `rampline forecast`", "run": "earlier runs with the same settings"}


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run as it would be started.

    Attributes:
        steps_per_epoch: updates per epoch; `None` until the data is prepared, unless the study gives its size.
        is_prepared: whether the data is, so that `steps_per_epoch` is what will be.
        quote: what it would take; `None` where there is neither an earlier run with these settings nor a reading.
        stops: when it stops before its last epoch, in words; empty for one that does not.
        is_repeat: whether it trains another run of the plan once more.
        parity_seconds: what its parity check took when it was last made; 0 where it was not.
    """

    name: str
    config: RunConfig
    steps_per_epoch: int | None
    is_prepared: bool
    quote: Forecast | None
    stops: str = ""
    is_repeat: bool = False
    parity_seconds: float = 0.0

    @property
    def at_most(self) -> str:
        """`at most `, before figures of a run that may stop before its last epoch; else empty."""
        return "at most " if self.stops else ""

    @property
    def expected_seconds(self) -> float | None:
        """Wall time, start-up and evaluation included; at most so long where the run may stop before its last epoch.

        A limit of the run's time ends all but the first epoch.
        """
        return self.quote and min(self.quote.wall_seconds, max(self.quote.least_seconds, time_limit(self.config)[0]))

    @property
    def expected_cost_usd(self) -> float | None:
        """Expected time at `cluster.price_per_hour`; `None` without either."""
        price = self.config.cluster.price_per_hour
        return None if price is None or self.expected_seconds is None else self.expected_seconds / 3600 * price


def plan_study(study: Study, home: Home) -> list[PlannedRun]:
    """Every run of a checked study as it would be started on this machine."""
    calibration, executions = Calibration.of(home), find_executions(home, study.name)
    return [_plan_run(study, run, home, executions, calibration) for run in study.runs]


def expected_cost_usd(planned: Sequence[PlannedRun]) -> float | None:
    """What all these runs are expected to cost; `None` where that is not known of one of them."""
    costs = [run.expected_cost_usd for run in planned]
    return None if None in costs else sum(cost or 0.0 for cost in costs)


def _plan_run(
    study: Study, run: StudyRun, home: Home, executions: Sequence[Path], calibration: Calibration
) -> PlannedRun:
    config, prepared = run.config, study.datasets.get(run.config.data)
    examples = prepared.splits["train"] if prepared else run.train_examples
    return PlannedRun(
        name=run.name,
        config=config,
        steps_per_epoch=config.steps_per_epoch(examples) if examples else None,
        is_prepared=prepared is not None,
        quote=quote_run(home, executions, run.listed, config, prepared, calibration),
        stops=describe_stop(config, describe_rungs(study, run)),
        is_repeat=run not in study.first_trainings,
        parity_seconds=_last_parity(executions, run.name) if config.parity.steps else 0.0,
    )


def _last_parity(executions: Sequence[Path], run: str) -> float:
    for folder in executions:
        with suppress(*UNREADABLE):
            return ParityResult.read(result_file(RunDirectory(folder / run))).seconds
    return 0.0


def _place(config: RunConfig) -> str:
    replicas = config.cluster.replicas
    if config.cluster.virtual_devices:
        return f"{replicas} virtual on the CPU" if replicas > 1 else "CPU"
    return f"{replicas} GPU" if gpus_of_machine(config) else "CPU"


def plan_table(runs: Sequence[PlannedRun]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns in which any run has a figure, and a row for each run that is no repeat of another one."""
    columns = [_figures(run) for run in runs if not run.is_repeat]
    kept = [name for name in columns[0] if any(figures[name] for figures in columns)]
    return kept, [[figures[name] for name in kept] for figures in columns]


def _figures(run: PlannedRun) -> dict[str, str]:
    config, most, cost, steps = run.config, run.at_most, run.expected_cost_usd, run.steps_per_epoch
    has_price = config.cluster.price_per_hour is not None
    return {
        "run": run.name,
        "strategy": config.strategy.replace("_", " ") + (", fit" if config.engine == "fit" else ""),
        "processes": ", ".join(f"{count} {role}" for role, count in role_counts(config).items()),
        "devices": _place(config),
        "per-replica batch": str(config.per_replica_batch_size),
        "global batch": str(config.global_batch_size),
        "epochs": most + str(config.epochs),
        "steps per epoch": UNKNOWN if steps is None else f"{steps}{'' if run.is_prepared else FROM_STUDY}",
        "peak LR": f"{config.peak_learning_rate:g}",
        "repeats": f"{config.repeats}" if config.repeats > 1 else "",
        "time": UNKNOWN if run.expected_seconds is None else most + write_duration(run.expected_seconds),
        "within": "" if run.quote is None else write_percent(run.quote.wall_factor - 1),
        "cost": "" if not has_price else UNKNOWN if cost is None else most + write_dollars(cost),
    }


def plan_remarks(study: Study, runs: Sequence[PlannedRun], *, whose: str = "your") -> list[str]:
    """What else a person should know before it starts, a line each; imported code runs with the rights of `whose`."""
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
        for run in study.first_trainings
        if run.starts_from
    ]
    remarks += [_import_remark(name, whose) for name in sorted({run.config.model.name for run in runs}) if ":" in name]
    times = [run.expected_seconds for run in runs]
    if times and None not in times:
        most = next(filter(None, (run.at_most for run in runs)), "")
        remarks.append(f"expected time: {most}{write_duration(sum(time or 0.0 for time in times))}")
    if parity := sum(run.parity_seconds for run in runs):
        remarks.append(f"parity checks, which are not in these times: {write_duration(parity)}, as the last ones took")
    return remarks


def _with_runs(told: Iterable[tuple[str, str]]) -> list[str]:
    """Each remark once, with the names of the runs that it is about."""
    runs: dict[str, list[str]] = {}
    for remark, run in told:
        runs.setdefault(remark, []).append(run)
    return [f"{remark} ({', '.join(names)})" for remark, names in runs.items()]


def _set_ups(runs: Sequence[PlannedRun]) -> Iterator[tuple[str, str]]:
    firsts = [run for run in runs if not run.is_repeat]
    for run in firsts:
        if run.config.learning_rate.schedule != "constant":  # the column of the peak says that
            yield f"learning rate {describe_schedule(run.config)}", run.name
    yield from ((f"stops before its last epoch {run.stops}", run.name) for run in firsts if run.stops)


def _halving_remarks(study: Study) -> list[str]:
    grids = dict.fromkeys(run.halving for run in study.runs if run.halving and not describe_rungs(study, run))
    return [f"grid {grid} stops no run: halving needs two runs and {ETA * FIRST_RUNG} epochs" for grid in grids]


def _prices(runs: Sequence[PlannedRun]) -> Iterator[tuple[str, str]]:
    """Costs are for the machine that a run names, which need not be this one."""
    for run in runs:
        cluster = run.config.cluster
        if cluster.machine is not None and cluster.price_per_hour is not None:
            price = f"${cluster.price_per_hour:g} per hour"
            yield f"cost is for {cluster.machines} x {cluster.machine}, {price}", run.name


def _import_remark(name: str, whose: str) -> str:
    where = f"imports {name} from {locate_own(name, Path.cwd())}; it runs with {whose} rights in every role process"
    return f"{where}; if it compiles its model, that has its own optimizer, learning rate, loss and metrics"
