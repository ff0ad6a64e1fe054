"""The product's own engine, as a role of a run builds and calls it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

from benchmarks.datasets import bench_folder
from benchmarks.variants.turns import Turns
from benchmarks.variants.work import Work, time_block
from rampline.config import (
    BatchConfig,
    ClusterConfig,
    ModelConfig,
    RunConfig,
    apply_overrides,
    from_dict,
    parse_overrides,
    to_dict,
)
from rampline.jobs.tf_config import ALONE, Task
from rampline.record.checkpoints import Progress
from rampline.training.checkpoint import save_checkpoint
from rampline.training.engine import Engine
from rampline.training.objective import EXAMPLES
from rampline.training.state import make_state
from rampline.training.strategy import configure_devices, make_strategy
from rampline.training.train import make_engine


def train_in_loop(work: Work, replicas: int, turns: Turns, settings: Sequence[str]) -> None:
    """On one device, or mirrored on virtual ones at the same global batch; with settings such as `metrics=[top_5]`.

    The figures of a block also have real_vs_cached (its ratio to the speed on one cached batch, which comes after it)
    and checkpoint_share (a save over an epoch's steps).
    """
    config = from_dict(apply_overrides(to_dict(loop_config(work, replicas)), parse_overrides(settings)))
    engine = make_role_engine(config, work, ALONE)
    real, probe = make_run(engine), engine.make_probe("cached")
    real(work.steps)
    probe(work.steps)
    with tempfile.TemporaryDirectory(dir=bench_folder()) as folder:
        saves = time_saves(engine, Path(folder))
        next(saves)
        for _ in turns:
            figures = time_block(real, work)
            rate = figures["examples_per_second"]
            cached = work.batch_size / probe(work.steps)
            share = next(saves) / (work.examples / rate)
            turns.tell({**figures, "real_vs_cached": rate / cached, "checkpoint_share": share})


def time_saves(engine: Engine, folder: Path) -> Iterator[float]:
    """Make a checkpoint after the other in a folder; the seconds of each."""
    for number in count(1):
        started = time.perf_counter()
        save_checkpoint(folder, Progress(step=number), engine.state.model, engine.state.optimizer)
        yield time.perf_counter() - started


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
