"""The parity check inside a role process: the run's strategy, then one replica, on the same global batches.

It computes in float64, so that the order of a sum (1e-16) and an error (1e-9 and more) are told apart.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import keras
import numpy as np
import tensorflow as tf

from rampline.cluster.exit_status import NO_MEMORY, STOPPED, leave, one_line
from rampline.cluster.process import ERROR_MARK
from rampline.cluster.tf_config import ALONE, Task
from rampline.config import BatchConfig, ClusterConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.parity import RESULT, ParityResult, parity_notes
from rampline.run_directory import RunDirectory
from rampline.training.outcome import Outcome, first_step_of, skips_together, train_steps
from rampline.training.run import make_engine
from rampline.training.state import make_state
from rampline.training.verdict import compare, excuse, finite
from rampline.tuning.memory import is_out_of_memory

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
# A change of the weights that is no more than rounding.
SHAKES = {"float64": 1e-15, "float32": 1e-7}
POLL_SECONDS = 0.1
NOT_TOGETHER = "where one replica overflows in mixed_float16, not all of them skip the step"


def check_role(
    config: RunConfig, task: Task, run_directory: RunDirectory, strategy: tf.distribute.Strategy, out: Path
) -> NoReturn:
    """Do this role's part of the check and end: the chief writes `out/parity.json`, the others wait for it.

    Args:
        config: the run as `parity_config` gives it; `configure_devices` was called with it.
        task: the chief, or a worker of a synchronous strategy.
        run_directory: created; nothing in it is changed.
        strategy: made from `config`.
        out: folder of the result.
    """
    # TensorFlow's multi-worker runtime swallows SIGTERM unless a handler is installed after it.
    signal.signal(signal.SIGTERM, lambda *_: leave(STOPPED))
    dataset = PreparedDataset.open(Path(run_directory.read_identity().dataset))
    run = run_directory.read_config()
    try:
        skips, result = _check(run, config, task, dataset, strategy)
    except Exception as error:
        if is_out_of_memory(error):
            print(f"{ERROR_MARK}{one_line(error)}", file=sys.stderr)  # noqa: T201
            leave(NO_MEMORY)
        raise
    if task.is_chief:
        notes = parity_notes(run)
        if not skips:
            result = dataclasses.replace(result, status="fail", reason=NOT_TOGETHER)
        dataclasses.replace(result, notes=notes).write(out / RESULT)
    # A worker that left would end the chief's runtime while that computes the reference.
    while not (out / RESULT).is_file():
        time.sleep(POLL_SECONDS)
    leave(0)


def _check(
    run: RunConfig, config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy
) -> tuple[bool, ParityResult]:
    """Whether all replicas skip a step together, where steps are skipped, and what the steps say."""
    skips = True
    if run.precision == "mixed_float16" and strategy.num_replicas_in_sync > 1:
        skips = skips_together(config, task, dataset, strategy)
        keras.backend.clear_session()
    check = check_steps if config.is_synchronous or config.cluster.workers == 1 else measure_staleness
    return skips, check(config, task, dataset, strategy)


def check_steps(
    config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy
) -> ParityResult:
    """Train the steps on the strategy and, in the chief, by the loop on one replica; what the comparison says."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    ours = train_steps(config, config, task, dataset, strategy)
    result = _describe(config, dataset, ours)
    if not task.is_chief:
        return result
    batch = BatchConfig(size=config.global_batch_size, per="global")
    alone = dataclasses.replace(config, strategy="single", engine="loop", cluster=ClusterConfig(), batch=batch)
    device = tf.distribute.OneDeviceStrategy(_own_device(strategy))
    reference = train_steps(config, alone, ALONE, dataset, device)
    result = compare(result, ours, reference)
    if result.status == "fail":
        shaken = train_steps(config, alone, ALONE, dataset, device, shake=SHAKES[ours.precision])
        result = excuse(result, ours, reference, shaken)
    return result


def _own_device(strategy: tf.distribute.Strategy) -> str:
    """A device of this process: the first replica's, or the chief's own where the replicas are elsewhere."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return "/job:chief/replica:0/task:0/device:CPU:0"
    return strategy.extended.worker_devices[0]


def _describe(config: RunConfig, dataset: PreparedDataset, outcome: Outcome) -> ParityResult:
    return ParityResult(
        status="pass",
        steps=config.parity.steps,
        first_step=first_step_of(config, dataset.splits["train"]),
        global_batch_size=config.global_batch_size,
        replicas=config.replicas,
        precision=outcome.precision,
        tolerance=TOLERANCES[outcome.precision],
        losses=finite(outcome.losses),
        neutralised=outcome.neutralised,
    )


def measure_staleness(
    config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy
) -> ParityResult:
    """Asynchronous updates differ by design: how old the weights were that they were computed from."""
    state = make_state(config, dataset, strategy)
    engine = make_engine(config, dataset, strategy, state, task, measure_staleness=True)
    first, steps = first_step_of(config, dataset.splits["train"]), config.parity.steps
    state.step.assign(first)
    # Which worker has compiled first would decide the figures of the first steps.
    for _ in engine.run_steps(first, steps):
        pass
    done = list(engine.run_steps(first + steps, steps))
    staleness = np.concatenate([part.staleness for part in done if part.staleness is not None])
    return ParityResult(
        status="not_applicable",
        reason=f"{config.cluster.workers} workers update asynchronously: no two runs are the same, and none is wrong",
        steps=steps,
        first_step=first + steps,
        global_batch_size=config.global_batch_size,
        replicas=config.replicas,
        precision="float32",
        losses=finite(np.concatenate([part.losses for part in done])),
        mean_staleness=float(staleness.mean()),
        max_staleness=int(staleness.max()),
    )
