"""What a study would run, worked out without starting or writing anything."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampline.config import RunConfig, flatten
from rampline.config.formats import keys_that_keep_epoch_time
from rampline.devices import Devices, find_devices
from rampline.files import read_json
from rampline.jobs.roles import role_counts
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
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
        expected_seconds: training time, from the epochs that were measured last with these settings; `None` if never.
            At most so long where the run may stop before its last epoch.
        stops: when it stops before its last epoch, in words; empty for one that does not.
        repeat_of: the run that this one trains once more; empty for a first training.
    """

    name: str
    config: RunConfig
    processes: str
    devices: str
    steps_per_epoch: int | None
    is_prepared: bool
    expected_seconds: float | None
    stops: str = ""
    repeat_of: str = ""

    @property
    def at_most(self) -> str:
        """`at most `, before figures of a run that may stop before its last epoch; else empty."""
        return "at most " if self.stops else ""

    @property
    def expected_cost_usd(self) -> float | None:
        """Expected time at `cluster.price_per_hour`; `None` without either."""
        price = self.config.cluster.price_per_hour
        return None if price is None or self.expected_seconds is None else self.expected_seconds / 3600 * price


def plan_study(study: Study, home: Home) -> list[PlannedRun]:
    """Every run of a checked study as it would be started on this machine."""
    devices = find_devices()
    return [_plan_run(study, run, home, devices) for run in study.runs]


def expected_cost_usd(planned: Sequence[PlannedRun]) -> float | None:
    """What all these runs are expected to cost; `None` where that is not known of one of them."""
    costs = [run.expected_cost_usd for run in planned]
    return None if None in costs else sum(cost or 0.0 for cost in costs)


def _plan_run(study: Study, run: StudyRun, home: Home, devices: Devices) -> PlannedRun:
    config, prepared = run.config, study.datasets.get(run.config.data)
    examples = prepared.splits["train"] if prepared else run.train_examples
    return PlannedRun(
        name=run.name,
        config=config,
        processes=", ".join(f"{count} {role}" for role, count in role_counts(config).items()),
        devices=_place(config, devices),
        steps_per_epoch=config.steps_per_epoch(examples) if examples else None,
        is_prepared=prepared is not None,
        expected_seconds=expected_seconds(home.runs / study.name, run.repeat_of or run.name, config),
        stops=describe_stop(config, describe_rungs(study, run)),
        repeat_of=run.repeat_of,
    )


def _place(config: RunConfig, devices: Devices) -> str:
    replicas = config.cluster.replicas
    if config.cluster.virtual_devices:
        return f"{replicas} virtual on the CPU"
    return f"{replicas} GPU" if devices.gpus else "CPU"


def expected_seconds(executions: Path, run: str, config: RunConfig) -> float | None:
    """Training time of `config.epochs` epochs, from the newest execution that ran `run` with the same settings.

    The first epoch compiles, so it counts once with its own time and the others with the median of the rest. A limit of
    the run's time ends all but the first.
    """
    for seconds in _measured_epochs(executions, run, config):
        if seconds:
            later = statistics.median(seconds[1:] or seconds)
            return max(seconds[0], min(seconds[0] + later * (config.epochs - 1), time_limit(config)[0]))
    return None


def _measured_epochs(executions: Path, run: str, config: RunConfig) -> Iterator[list[float]]:
    """Seconds of each epoch, newest execution first: their names begin with the time."""
    wanted = json.loads(json.dumps(_settings(config)))
    # Not the single epochs of `rampline explain --measure` beside them, which hold the tracing.
    for execution in sorted(executions.glob("[0-9]*/"), reverse=True):
        directory = RunDirectory(execution / run)
        if _has_settings(directory, wanted, config):
            epochs = [event["metrics"] for event in directory.read_events("epoch")]
            yield [metrics["epoch_seconds"] for metrics in epochs if metrics.get("epoch_seconds")]


def _has_settings(directory: RunDirectory, wanted: Mapping[str, object], config: RunConfig) -> bool:
    """Whether a run was made with the settings of `config`; `wanted` are those as JSON gives them back."""
    if not directory.config_file.is_file():
        return False
    found = read_json(directory.config_file)
    # Building and checking a configuration takes ten times as long as reading it, and most earlier ones differ.
    if any(_leaf(found, key, value) != value for key, value in wanted.items()):
        return False
    return _settings(directory.read_config()) == _settings(config)


def _leaf(values: Any, key: str, default: object) -> object:
    """The value at a dotted key; `default` where an older version has written no such key."""
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return default
        values = values[part]
    return values


def _settings(config: RunConfig) -> dict[str, object]:
    return {key: value for key, value in flatten(config).items() if key not in keys_that_keep_epoch_time()}
