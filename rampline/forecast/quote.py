"""What a study would take, said before it runs: from earlier runs, else from readings. No TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from itertools import islice
from pathlib import Path
from typing import Any

from rampline.config import BatchConfig, RunConfig, flatten
from rampline.config.formats import keys_that_keep_epoch_time
from rampline.data.dataset import PreparedDataset
from rampline.errors import ClusterConfigError, ConfigError
from rampline.explain.explanation import Explanation
from rampline.explain.parts import RunParts, StepParts, run_parts, steady_epochs
from rampline.files import read_json
from rampline.forecast.forecast import (
    PRIOR,
    UNREADABLE,
    Calibration,
    Forecast,
    counts_here,
    faster,
    forecast_run,
)
from rampline.forecast.machine_types import MachineType
from rampline.forecast.reading import (
    Reading,
    chosen_batch_sizes,
    few_replicas,
    file_of,
    key_of,
    take_reading,
)
from rampline.jobs.job import JobFailed
from rampline.record.home import Home
from rampline.record.provenance import this_machine
from rampline.record.run_directory import RunDirectory
from rampline.record.units import write_number_of, write_range, write_ratio
from rampline.study.content import without_seed

Log = Callable[[str], None]
# Earlier trainings that a quote is the median of.
LATEST = 3
# Settings that change how long a run takes, though not how long the steps of an epoch do.
BETWEEN_EPOCHS = ("checkpoint_every_epochs", "tensorboard", "log_examples")


def take_readings(runs: Sequence[tuple[RunConfig, PreparedDataset]], home: Home, *, log: Log) -> None:
    """Measure what the forecasts of these runs need, each thing once, and keep it in the home.

    Raises:
        RunFailed: when a process fails, naming its log.
    """
    wanted: dict[tuple[str, int], tuple[RunConfig, PreparedDataset, list[int]]] = {}
    for config, dataset in runs:
        counts = [1, few_replicas(config)] if config.replicas > 1 else [1]
        for replicas in counts:
            key = key_of(config, dataset, replicas), replicas
            wanted.setdefault(key, (config, dataset, []))[2].append(config.per_replica_batch_size)
    for (key, replicas), (config, dataset, sizes) in wanted.items():
        most = max(1, dataset.splits["train"] // replicas)
        chosen = chosen_batch_sizes([min(size, most) for size in sizes])
        what = f"{config.model.name}, {write_number_of('replica', replicas)}"
        what += f" ({config.strategy})" if replicas > 1 else ""
        started = time.monotonic()
        try:
            found = take_reading(config, dataset, replicas, chosen, file_of(home, key))
        except (ClusterConfigError, JobFailed) as error:
            if isinstance(error, JobFailed) and not error.lacks_memory:
                raise
            log(f"not read: {what}: {error}")
            continue
        batches = ", ".join(str(size) for size in found.batch_sizes)
        log(f"read: {what}, batches of {batches}: {time.monotonic() - started:.0f} s")


def quote_run(
    home: Home,
    executions: Sequence[Path],
    run: str,
    config: RunConfig,
    dataset: PreparedDataset | None,
    calibration: Calibration,
) -> Forecast | None:
    """What a run would take: as earlier ones with its settings took, else as readings say; `None` without either.

    It is the newest one, or the median of the latest three: one may have had the machine for itself, another not.

    Args:
        home: with the readings.
        executions: folders of the study's executions, newest first.
        run: its name, or that of the run it repeats.
        config: the run.
        dataset: that it trains on; `None` where it is not prepared.
        calibration: of the home.
    """
    latest = list(islice(_earlier(executions, run, config, dataset), LATEST))
    if len(latest) == LATEST:
        latest = sorted(latest, key=lambda forecast: forecast.wall_seconds)[LATEST // 2 :]
    found = next(iter(latest), None)
    if found is None and dataset is not None:
        found = from_readings(home, config, dataset)
    return found and calibration.applied(found)


def from_readings(
    home: Home, config: RunConfig, dataset: PreparedDataset, machine: MachineType | None = None
) -> Forecast | None:
    """The forecast of the readings that the home has; `None` where it has none for the run."""
    one = _read(home, config, dataset, 1)
    few = _read(home, config, dataset, few_replicas(config)) if config.replicas > 1 else None
    if one is None:
        return None
    examples = {f"{split}_examples": dataset.splits[split] for split in ("train", "validation")}
    return forecast_run(config, one, few, **examples, machine=machine)


def tell_doubled(
    home: Home, run: str, config: RunConfig, dataset: PreparedDataset, speedup: float, calibration: Calibration
) -> str:
    """How fast a run would be with twice as many replicas and the same global batch; empty where nothing says so."""
    doubled = _doubled(config)
    if doubled is None or not math.isfinite(speedup):
        return ""
    now, then = (from_readings(home, each, dataset) for each in (config, doubled))
    if now is None or then is None:
        return ""
    now, then = calibration.applied(now), calibration.applied(then)
    ratio, factor = faster(then, now)
    what = "workers" if config.strategy == "multi_worker" else "replicas"
    count = doubled.cluster.workers if config.strategy == "multi_worker" else doubled.replicas
    return (
        f"Not measured: {run} with {count} {what} would reach {write_range(speedup * ratio, factor, write_ratio)} "
        f"of the reference's speed, by forecast; what would hold it back most: {then.bound}."
    )


def _doubled(config: RunConfig) -> RunConfig | None:
    """The same training on twice as many replicas; `None` where there is no such set-up."""
    cluster = config.cluster
    if config.strategy == "mirrored":
        more = {"replicas": 2 * cluster.replicas, "virtual_devices": 2 * int(cluster.virtual_devices)}
    elif config.strategy == "multi_worker":
        more = {"workers": 2 * cluster.workers, "machines": 1}
    else:
        return None
    batch = BatchConfig(size=config.global_batch_size, per="global")
    try:
        return dataclasses.replace(config, batch=batch, cluster=dataclasses.replace(cluster, **more))
    except ConfigError:  # fewer examples than replicas
        return None


def _read(home: Home, config: RunConfig, dataset: PreparedDataset, replicas: int) -> Reading | None:
    file = file_of(home, key_of(config, dataset, replicas))
    try:
        return Reading.read(file)
    except UNREADABLE:
        return None


def _earlier(
    executions: Sequence[Path], run: str, config: RunConfig, dataset: PreparedDataset | None
) -> Iterator[Forecast]:
    """Of each complete run of these settings and data on this machine, and of its repeats, newest first."""
    kept, here = keys_that_keep_epoch_time().difference(BETWEEN_EPOCHS), this_machine()
    # A run with a price of its own names no machine, though it may have been trained at that of a named one.
    kept |= set() if config.cluster.machine else {"cluster.machine", "cluster.machines"}
    wanted = json.loads(json.dumps({key: value for key, value in flatten(config).items() if key not in kept}))
    for execution in executions:
        folders = [each for each in execution.glob(f"{run}*") if run in (each.name, without_seed(each.name))]
        complete = [directory for directory in map(RunDirectory, folders) if directory.is_complete]
        for directory in sorted(complete, key=lambda each: each.result_file.stat().st_mtime, reverse=True):
            with suppress(*UNREADABLE):
                if not _has_settings(directory, wanted) or not counts_here(directory, here):
                    continue
                # A folder of images may have others by now.
                is_of_data = dataset is None or Path(directory.read_identity().dataset).name == dataset.directory.name
                if is_of_data and (forecast := _as_it_was(directory, config)):
                    yield forecast


def _as_it_was(directory: RunDirectory, config: RunConfig) -> Forecast | None:
    """An earlier run, with the epochs of `config`, and as if it had been started once.

    `None` for more epochs than one that held the tracing: how long the others would be, it does not tell.
    """
    events, result = directory.read_events("started", "epoch", "checkpoint"), read_json(directory.result_file)
    epochs = steady_epochs(events)
    if not epochs and config.epochs > result["epochs"]:
        return None
    epochs = epochs or [event["metrics"] for event in events if event["event"] == "epoch"]
    epoch_seconds = statistics.median(metrics["epoch_seconds"] for metrics in epochs)
    speed = statistics.median(metrics["images_per_second"] for metrics in epochs)
    step_milliseconds = 1000 * epoch_seconds * result["epochs"] / result["steps"]
    step = StepParts(input=0.0, compute=step_milliseconds, contention=0.0, sync=0.0, other=0.0)
    if directory.explanation_file.is_file():
        step = Explanation.read(directory.explanation_file).step
    was = run_parts(events, result, step_milliseconds=step_milliseconds)
    starts = max(1, sum(event["event"] == "started" for event in events))
    shares = dict.fromkeys(dataclasses.asdict(was), config.epochs / result["epochs"])
    # The first write takes most of the logging: TensorBoard is imported with it.
    shares |= {"startup": 1 / starts, "tracing": 1 / starts, "logging": 1.0}
    # Steps that are slower, or faster, than the usual one are in every epoch; what other starts have lost is not, nor
    # is an epoch that was cut short.
    was_cut = max(starts, result.get("attempts", 1)) > 1 or result.get("stopped")
    shares |= {"unexplained": 0.0} if was_cut else {}
    run = RunParts(**{name: value * shares[name] for name, value in dataclasses.asdict(was).items()})
    # The first validation of each start takes longer: it is traced, too.
    usual = statistics.fmean(metrics.get("validation_seconds") or 0.0 for metrics in epochs)
    evaluation = config.epochs * usual + (was.evaluation - result["epochs"] * usual) / starts
    return Forecast(
        step=step,
        run=dataclasses.replace(run, evaluation=evaluation),
        images_per_second=speed,
        epochs=config.epochs,
        deviation=PRIOR,
        source="run",
    )


def _has_settings(directory: RunDirectory, wanted: Mapping[str, object]) -> bool:
    """Whether a run was made with these settings, by dotted key and as JSON gives them back."""
    found = read_json(directory.config_file)
    return all(reduce(_get, key.split("."), found) == value for key, value in wanted.items())


def _get(values: Any, part: str) -> Any:
    """`None` where another version has written no such key."""
    return values.get(part) if isinstance(values, Mapping) else None
