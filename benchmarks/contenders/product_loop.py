"""The product's own engine, as a role of a run builds and calls it."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders.work import Work, rate_figures
from benchmarks.datasets import bench_folder
from rampline.cluster.tf_config import ALONE, Task
from rampline.config import BatchConfig, ClusterConfig, ModelConfig, RunConfig
from rampline.training.checkpoint import save_checkpoint
from rampline.training.engine import Engine
from rampline.training.progress import Progress
from rampline.training.run import make_engine
from rampline.training.state import make_state
from rampline.training.step import EXAMPLES
from rampline.training.strategy import configure_devices, make_strategy

SAVES = 5


def measure_loop(work: Work, replicas: int) -> dict[str, Any]:
    """On one device, or mirrored on virtual ones at the same global batch.

    Returns:
        examples_per_second, real_vs_cached (its ratio to the speed on one cached batch, blocks in turn) and
        checkpoint_share (of an epoch's steps).
    """
    config = loop_config(work, replicas)
    engine = make_role_engine(config, work, ALONE)
    real, probe = make_run(engine), engine.make_probe("cached")
    real(work.steps)
    probe(work.steps)
    pairs = [(real(work.steps), work.batch_size / probe(work.steps)) for _ in range(work.timed_blocks)]
    figures = rate_figures([pair[0] for pair in pairs])
    epoch_seconds = work.examples / figures["examples_per_second"]
    return {
        **figures,
        "real_vs_cached": statistics.median(rate / cached for rate, cached in pairs),
        "checkpoint_share": checkpoint_seconds(engine) / epoch_seconds,
    }


def checkpoint_seconds(engine: Engine) -> float:
    """The median time of a save on the disk of this folder."""
    seconds = []
    with tempfile.TemporaryDirectory(dir=bench_folder()) as folder:
        for number in range(1, SAVES + 1):
            started = time.perf_counter()
            save_checkpoint(Path(folder), Progress(step=number), engine.state.model, engine.state.optimizer)
            seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def loop_config(work: Work, replicas: int) -> RunConfig:
    """A run with the product's defaults."""
    return RunConfig(
        strategy="mirrored" if replicas > 1 else "single",
        model=ModelConfig(name=work.model),
        batch=BatchConfig(size=work.batch_size),
        cluster=ClusterConfig(replicas=replicas, virtual_devices=replicas if replicas > 1 else 0),
    )


def make_role_engine(config: RunConfig, work: Work, task: Task) -> Engine:
    """What a role has before its first step."""
    dataset = work.open_dataset()
    configure_devices(config)
    strategy = make_strategy(config)
    return make_engine(config, dataset, strategy, make_state(config, dataset, strategy), task)


def make_run(engine: Engine) -> Callable[[int], float]:
    """A function that makes so many further steps and returns examples per second."""
    position = 0

    def run(steps: int) -> float:
        nonlocal position
        started = time.perf_counter()
        examples = sum(float(done.sums[:, EXAMPLES].sum()) for done in engine.run_steps(position, steps))
        position += steps
        return examples / (time.perf_counter() - started)

    return run
