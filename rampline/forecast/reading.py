"""What is measured for a forecast: short readings of a training with one replica, and with a few. No TensorFlow.

The roles of a reading are those of a run, started by its launcher. They make a few steps with several batch sizes, one
evaluation and one checkpoint, and keep nothing: see `rampline.forecast.reading_process`.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampline.config import ClusterConfig, ExplainConfig, RunConfig, to_dict
from rampline.data.dataset import PreparedDataset
from rampline.explain.replica import needs_virtual_device, replica_config
from rampline.files import JsonData, json_digest, read_json
from rampline.jobs.fork_server import wait_for_fork_server
from rampline.jobs.job import Job, run_together
from rampline.jobs.launchers import launcher_of_jobs
from rampline.record.home import Home
from rampline.record.provenance import describe_machine, environment
from rampline.training.timings import Timings

READY, RESULT = "ready", "reading.json"
# Of which the probes are: with fewer, what half a batch would take says nothing.
BATCH_SIZES = 3
# As few as there are more than one of: what more of them cost follows from that.
FEW_REPLICAS = 2
# For the compilation of a large network by several roles at once, and all rounds.
ALLOWANCE_SECONDS = 900
# Rounds are as long as their probe's `longest_seconds`.
MANY_STEPS = 10_000


@dataclass(frozen=True, kw_only=True)
class Reading(JsonData):
    """What was read of one training.

    Attributes:
        replicas: that computed at the same time.
        batch_sizes: examples of one replica in a step, ascending.
        real: milliseconds per step with each of them, pipeline and all.
        cached: the same of a batch that stays in memory.
        update: milliseconds to sum gradients over the replicas and to update; `None` where replicas do not wait for
            each other.
        latency_ms: of the smallest sum over the workers; 0 of one process.
        startup_seconds: from the launch of the roles until the network is there.
        tracing_seconds: what the first step takes longer than the later ones.
        evaluation_tracing_seconds: the same of the first evaluation.
        evaluation_images: of evaluations, ascending: parts of the validation split, or all of it.
        evaluation_seconds: of these.
        checkpoint_seconds: of one.
        logging_seconds: of the scalars of the first epoch: TensorBoard is imported with it.
        gradient_bytes: of one replica.
    """

    replicas: int
    batch_sizes: tuple[int, ...]
    real: tuple[Timings, ...]
    cached: tuple[Timings, ...]
    update: Timings | None
    latency_ms: float
    startup_seconds: float
    tracing_seconds: float
    evaluation_tracing_seconds: float
    evaluation_images: tuple[int, ...]
    evaluation_seconds: tuple[float, ...]
    checkpoint_seconds: float
    logging_seconds: float
    gradient_bytes: int


def few_replicas(config: RunConfig) -> int:
    """Those of the reading with more than one: two, or those of two workers."""
    return FEW_REPLICAS * (config.cluster.replicas if config.strategy == "multi_worker" else 1)


def config_of_reading(config: RunConfig, replicas: int) -> RunConfig:
    """A run with the network, data and strategy of `config`, and so many replicas; more than one are two workers'."""
    one = replica_config(config, is_virtual=needs_virtual_device(config))
    one = dataclasses.replace(one, explain=ExplainConfig(steps=MANY_STEPS))
    if replicas == 1:
        return one
    own = config.cluster
    if config.strategy == "mirrored":
        several: dict[str, Any] = {"replicas": replicas, "virtual_devices": replicas if own.virtual_devices else 0}
    else:
        several = {"workers": replicas // own.replicas, "replicas": own.replicas, "sum": own.sum}
        several |= {"parameter_servers": own.parameter_servers, "virtual_devices": own.virtual_devices}
    return dataclasses.replace(
        one,
        strategy=config.strategy,
        batch=dataclasses.replace(config.batch, size=config.per_replica_batch_size, per="replica"),
        cluster=ClusterConfig(launcher=own.launcher, **several),
    )


def key_of(config: RunConfig, dataset: PreparedDataset, replicas: int) -> str:
    """Equal for what one reading, on this machine, is good for: the batch and the learning rate may differ.

    A micro-batch may not: every step of a reading is made of those of its run.
    """
    values = to_dict(config_of_reading(config, replicas)) | {"batch": config.micro_batch_size}
    return json_digest([values, dataset.directory.name, describe_machine(environment())])[:16]


def file_of(home: Home, key: str) -> Path:
    """Where a reading is kept, for plans."""
    return home.root / "forecast" / key / RESULT


def chosen_batch_sizes(wanted: Sequence[int]) -> tuple[int, ...]:
    """At most `BATCH_SIZES` of them: the smallest, the largest, and their geometric mean."""
    sizes = sorted(set(wanted))
    if len(sizes) > BATCH_SIZES:
        sizes = sorted({sizes[0], round(math.sqrt(sizes[0] * sizes[-1])), sizes[-1]})
    if len(sizes) == 1 and sizes[0] > 1:
        sizes = [sizes[0] // 2, sizes[0]]
    return tuple(sizes)


def take_reading(
    config: RunConfig, dataset: PreparedDataset, replicas: int, batch_sizes: Sequence[int], file: Path
) -> Reading:
    """Measure, and write it to `file`; whatever ends this call, none of its processes is alive afterwards.

    Args:
        config: a run, see `config_of_reading`.
        dataset: that it trains on.
        replicas: how many.
        batch_sizes: of one replica, ascending.
        file: in a folder of its own, which also gets the logs.

    Raises:
        ClusterConfigError: when there is no place for so many replicas.
        RunFailed: when a role fails, naming its log.
    """
    chosen = config_of_reading(config, replicas)
    job = Job(
        function="forecast",
        what="forecast",
        folder=file.parent,
        datasets=[dataset.directory],
        arguments={"config": to_dict(chosen), "dataset": str(dataset.directory), "batch_sizes": list(batch_sizes)},
        timeout_seconds=ALLOWANCE_SECONDS + chosen.cluster.rendezvous_timeout_seconds,
    )
    launcher = launcher_of_jobs(chosen)
    launcher.check(chosen)
    placement = launcher.place(chosen)
    wait_for_fork_server()
    # Not before: what is refused leaves the last reading as it is.
    shutil.rmtree(file.parent, ignore_errors=True)
    started, ready = time.monotonic(), []
    run_together(placement, [(task, job) for task in placement.tasks], lambda _: ready.append(time.monotonic()))
    reading = Reading.from_dict(read_json(file) | {"replicas": replicas, "startup_seconds": ready[0] - started})
    reading.write(file)
    return reading
