"""The parity check inside a role process: the run's strategy, then one replica, on the same global batches.

It computes in float64, so that the order of a sum (1e-16) and an error (1e-9 and more) are told apart.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from pathlib import Path
from typing import NoReturn

import keras
import numpy as np
import tensorflow as tf

from rampline.cluster.exit_status import STOPPED
from rampline.cluster.tf_config import Task
from rampline.config import BatchConfig, ClusterConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.parity import RESULT, ParityResult, parity_notes
from rampline.role import leave
from rampline.run_directory import RunDirectory
from rampline.training.outcome import Outcome, first_step_of, train_steps
from rampline.training.run import make_engine
from rampline.training.state import make_state

TOLERANCES = {"float64": 1e-9, "float32": 1e-4}
ALONE = Task(cluster={"chief": ("127.0.0.1:0",)}, role="chief", index=0)
POLL_SECONDS = 0.1


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
    if config.is_synchronous or config.cluster.workers == 1:
        result = check_steps(config, task, dataset, strategy)
    else:
        result = measure_staleness(config, task, dataset, strategy)
    if task.is_chief:
        notes = parity_notes(run_directory.read_config())
        dataclasses.replace(result, notes=notes).write(out / RESULT)
    # A worker that left would end the chief's runtime while that computes the reference.
    while not (out / RESULT).is_file():
        time.sleep(POLL_SECONDS)
    leave(0)


def check_steps(
    config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy
) -> ParityResult:
    """Train the steps on the strategy and, in the chief, on one replica of this process; what the comparison says."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    ours = train_steps(config, config, task, dataset, strategy)
    result = _describe(config, dataset, ours)
    if not task.is_chief:
        return result
    batch = BatchConfig(size=config.global_batch_size, per="global")
    alone = dataclasses.replace(config, strategy="single", cluster=ClusterConfig(), batch=batch)
    try:
        reference = train_steps(config, alone, ALONE, dataset, tf.distribute.OneDeviceStrategy(_own_device(strategy)))
    except tf.errors.ResourceExhaustedError:
        reason = f"one replica has no memory for the global batch of {config.global_batch_size} in float64"
        return dataclasses.replace(result, status="not_applicable", reason=reason)
    return compare(result, ours, reference)


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
        losses=_finite(outcome.losses),
        neutralised=outcome.neutralised,
    )


def compare(result: ParityResult, ours: Outcome, reference: Outcome) -> ParityResult:
    """`result` with the differences of two outcomes, and what they mean."""
    pairs = zip(ours.values, reference.values, ours.spread, strict=True)
    differences = [max(np.abs(a - b).max(initial=0.0), spread) for a, b, spread in pairs]
    # NaN is larger than all: a variable that has one is the worst.
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
    losses = np.abs(ours.losses - reference.losses).max()
    status, reason = _judge(result, ours, reference, max(losses, differences[worst]))
    return dataclasses.replace(
        result,
        status=status,
        reason=reason,
        max_loss_diff=_finite([losses])[0],
        max_weight_diff=_finite([differences[worst]])[0],
        worst_variable=ours.names[worst],
        reference_losses=_finite(reference.losses),
    )


def _judge(result: ParityResult, ours: Outcome, reference: Outcome, difference: float) -> tuple[str, str]:
    """Status and reason; `difference` is the largest one found."""
    for who, outcome in (("one replica", reference), ("the strategy", ours)):
        bad = np.flatnonzero(~np.isfinite(outcome.losses))
        if bad.size:
            step = result.first_step + int(bad[0]) + 1
            return "fail", f"the loss is {outcome.losses[bad[0]]} at step {step} on {who}: lower learning_rate.peak"
    if difference <= result.tolerance:
        return "pass", ""
    if ours.always_random:
        names = ", ".join(ours.always_random)
        return "not_applicable", f"the layer {names} draws random numbers and has no argument `training`"
    if not np.isfinite(difference):
        return "fail", "a variable is not finite after the steps"
    return "fail", f"the replicas train differently: {difference:.3g} is more than rounding ({result.tolerance:g})"


def _finite(values: np.ndarray | list[float]) -> tuple[float | None, ...]:
    return tuple(float(v) if np.isfinite(v) else None for v in values)


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
        losses=_finite(np.concatenate([part.losses for part in done])),
        mean_staleness=float(staleness.mean()),
        max_staleness=int(staleness.max()),
    )
