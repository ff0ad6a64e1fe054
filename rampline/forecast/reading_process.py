"""A reading inside a role process: see `rampline.forecast.reading`, which starts it."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from rampline.config import RunConfig, from_dict
from rampline.data.dataset import PreparedDataset
from rampline.files import write_json
from rampline.forecast.reading import READY, RESULT
from rampline.jobs.job import EVENTS
from rampline.jobs.tf_config import Task
from rampline.record.checkpoints import Progress
from rampline.record.events import EventWriter
from rampline.training.checkpoint import save_checkpoint
from rampline.training.engine import Engine
from rampline.training.probes import measure_in_turns
from rampline.training.role import leave_with, take_part
from rampline.training.state import TrainingState, make_state
from rampline.training.tensorboard import ScalarWriter
from rampline.training.timings import CACHED, REAL, UPDATE
from rampline.training.train import make_engine

ROUNDS, LONGEST_ROUND_SECONDS = 5, 0.3
# On a link with a delay a round is longer, so that what a call waits for is a small part of it, as in a run. About half
# of it is used: a call with a single step says how many steps fit in.
LATENCIES_OF_A_ROUND = 60
# Of the validation split at first so many batches, then each time so many times as much until it takes so long.
EVALUATION_BATCHES, EVALUATION_GROWTH, EVALUATION_SECONDS = 2, 4, 0.5
LATENCIES = 20
# All steps of a reading together: of a slow network fewer batch sizes are read. Each is trained on so often.
STEPS_SECONDS, STEPS_OF_A_SIZE = 60.0, 14


def read_role(folder: Path, config: dict[str, Any], dataset: str, batch_sizes: list[int]) -> NoReturn:
    """Do this role's part and end: the chief writes the reading, the others wait for it."""
    run = from_dict(config)
    task, strategy = take_part(run)
    values = _read(run, task, PreparedDataset.open(Path(dataset)), strategy, folder, batch_sizes)
    if task.is_chief:
        write_json(folder / RESULT, values)
    leave_with(folder / RESULT)


def _read(
    config: RunConfig,
    task: Task,
    dataset: PreparedDataset,
    strategy: tf.distribute.Strategy,
    folder: Path,
    batch_sizes: list[int],
) -> dict[str, Any]:
    # A part of its own splits: see `_evaluations`.
    dataset = dataclasses.replace(dataset, splits=dict(dataset.splits))
    state = make_state(config, dataset, strategy)
    engine = make_engine(config, dataset, strategy, state, task)
    if task.is_chief:
        EventWriter(folder / EVENTS).write(READY)
    started = time.perf_counter()
    smallest = engine.make_probe(REAL, batch_sizes[0] * config.num_replicas_in_sync)
    smallest(1)
    # With the pipeline, whose first batch a run waits for, too.
    first = engine.average(time.perf_counter() - started)
    second = engine.average(_seconds(lambda: smallest(1)))
    batch_sizes = _affordable(batch_sizes, second)
    probes = {
        f"{kind} {size}": engine.make_probe(kind, size * config.num_replicas_in_sync)
        for size in batch_sizes
        for kind in (REAL, CACHED)
    }
    if config.is_synchronous and config.cluster.sum == "fast":
        probes["update"] = engine.make_probe(UPDATE)
    first_evaluation, evaluations = _evaluations(config, engine, dataset.splits)
    is_ring = config.strategy == "multi_worker"
    latency = min(engine.average(_seconds(lambda: engine.average(0.0))) for _ in range(LATENCIES)) if is_ring else 0.0
    longest = max(LONGEST_ROUND_SECONDS, LATENCIES_OF_A_ROUND * latency)
    timings = measure_in_turns(probes, config, engine.average, rounds=ROUNDS, longest_seconds=longest)
    update = timings.get("update")
    saved, logged = _write(state, folder) if task.is_chief else (math.nan, math.nan)
    return {
        "batch_sizes": batch_sizes,
        "real": [dataclasses.asdict(timings[f"{REAL} {size}"]) for size in batch_sizes],
        "cached": [dataclasses.asdict(timings[f"{CACHED} {size}"]) for size in batch_sizes],
        "update": update and dataclasses.asdict(update),
        "latency_ms": 1000 * latency,
        "tracing_seconds": max(0.0, first - second),
        "evaluation_tracing_seconds": max(0.0, first_evaluation - evaluations[min(evaluations)]),
        "evaluation_images": list(evaluations)[-2:],
        "evaluation_seconds": list(evaluations.values())[-2:],
        "checkpoint_seconds": saved,
        "logging_seconds": logged,
        "gradient_bytes": sum(math.prod(v.shape) * v.value.dtype.size for v in state.model.trainable_variables),
    }


def _affordable(batch_sizes: list[int], seconds: float) -> list[int]:
    """Without the largest that would take too long; `seconds` are those of a step with the smallest."""
    sizes = list(batch_sizes)
    while len(sizes) > 1 and STEPS_OF_A_SIZE * seconds * sum(sizes) / sizes[0] > STEPS_SECONDS:
        sizes.pop()
    return sizes


def _evaluations(config: RunConfig, engine: Engine, splits: dict[str, int]) -> tuple[float, dict[int, float]]:
    """Seconds of the first evaluation, which traces, and of later ones by images; all roles make the same.

    The engine looks its examples up in `splits`.
    """

    def evaluate() -> float:
        return engine.average(_seconds(lambda: (engine.average_moving_statistics(), engine.evaluate("validation"))))

    whole, found = splits["validation"], dict[int, float]()
    splits["validation"] = min(whole, EVALUATION_BATCHES * config.replicas * config.per_replica_batch_size)
    first = evaluate()
    while True:
        images = splits["validation"]
        found[images] = evaluate()
        if images == whole or found[images] > EVALUATION_SECONDS:
            return first, found
        splits["validation"] = min(whole, EVALUATION_GROWTH * images)


def _write(state: TrainingState, folder: Path) -> tuple[float, float]:
    """Seconds of the second of two checkpoints, for the first one's folder is made with it, and of the scalars."""
    with tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as made:
        _, saved = (
            _seconds(lambda step=step: save_checkpoint(Path(made), Progress(step=step), state.model, state.optimizer))
            for step in (1, 2)
        )
        scalars = Path(made, "tensorboard")
        return saved, _seconds(lambda: ScalarWriter(scalars, warn=print).write_epoch(1, {"val_loss": 1.0}))


def _seconds(do: Callable[[], object]) -> float:
    started = time.perf_counter()
    do()
    return time.perf_counter() - started
