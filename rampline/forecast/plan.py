"""What a study would run, worked out without starting or writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rampline.config import RunConfig
from rampline.forecast.forecast import Calibration, Forecast
from rampline.forecast.quote import quote_run
from rampline.jobs.launchers import gpus_of_machine
from rampline.jobs.roles import role_counts
from rampline.record.home import Home
from rampline.study import Study, StudyRun
from rampline.study.halving import describe_rungs
from rampline.training.early_stop import describe_stop, time_limit


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run as it would be started.

    Attributes:
        name: its name in the study.
        config: its checked configuration.
        processes: roles with their number, such as `1 chief, 2 worker, 1 ps`.
        devices: where the replicas of one process would be.
        steps_per_epoch: updates per epoch; `None` until the data is prepared, unless the study gives its size.
        is_prepared: whether the data is, so that `steps_per_epoch` is what will be.
        quote: what it would take; `None` where there is neither an earlier run with these settings nor a reading.
        stops: when it stops before its last epoch, in words; empty for one that does not.
        repeat_of: the run that this one trains once more; empty for a first training.
    """

    name: str
    config: RunConfig
    processes: str
    devices: str
    steps_per_epoch: int | None
    is_prepared: bool
    quote: Forecast | None
    stops: str = ""
    repeat_of: str = ""

    @property
    def at_most(self) -> str:
        """`at most `, before figures of a run that may stop before its last epoch; else empty."""
        return "at most " if self.stops else ""

    @property
    def expected_seconds(self) -> float | None:
        """Wall time, start-up and evaluation included; at most so long where the run may stop before its last epoch.

        A limit of the run's time ends all but the first epoch.
        """
        return self.quote and max(self.quote.least_seconds, min(self.quote.wall_seconds, time_limit(self.config)[0]))

    @property
    def expected_cost_usd(self) -> float | None:
        """Expected time at `cluster.price_per_hour`; `None` without either."""
        price = self.config.cluster.price_per_hour
        return None if price is None or self.expected_seconds is None else self.expected_seconds / 3600 * price


def plan_study(study: Study, home: Home) -> list[PlannedRun]:
    """Every run of a checked study as it would be started on this machine."""
    calibration = Calibration.of(home)
    return [_plan_run(study, run, home, calibration) for run in study.runs]


def expected_cost_usd(planned: Sequence[PlannedRun]) -> float | None:
    """What all these runs are expected to cost; `None` where that is not known of one of them."""
    costs = [run.expected_cost_usd for run in planned]
    return None if None in costs else sum(cost or 0.0 for cost in costs)


def _plan_run(study: Study, run: StudyRun, home: Home, calibration: Calibration) -> PlannedRun:
    config, prepared = run.config, study.datasets.get(run.config.data)
    examples = prepared.splits["train"] if prepared else run.train_examples
    return PlannedRun(
        name=run.name,
        config=config,
        processes=", ".join(f"{count} {role}" for role, count in role_counts(config).items()),
        devices=_place(config),
        steps_per_epoch=config.steps_per_epoch(examples) if examples else None,
        is_prepared=prepared is not None,
        quote=quote_run(home, study.name, run.repeat_of or run.name, config, prepared, calibration),
        stops=describe_stop(config, describe_rungs(study, run)),
        repeat_of=run.repeat_of,
    )


def _place(config: RunConfig) -> str:
    replicas = config.cluster.replicas
    if config.cluster.virtual_devices:
        return f"{replicas} virtual on the CPU" if replicas > 1 else "CPU"
    return f"{replicas} GPU" if gpus_of_machine(config) else "CPU"
