"""A few steps under one strategy, and all that they leave behind: what the parity check compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from rampline.cluster.tf_config import Task
from rampline.compiled import compiled
from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.parity import Neutralised
from rampline.pipeline.examples import open_examples
from rampline.training.neutral import neutralise, random_layers
from rampline.training.run import make_engine
from rampline.training.state import TrainingState, make_state

# Whose statistics BatchNormalization uses in the check.
FIXED_EXAMPLES = 32
# Of the check that a step is skipped, and the share of rounding in a mean of equal values.
SKIP_STEPS, EQUAL = 3, 1e-6


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A few steps under one strategy.

    Attributes:
        losses: (steps,) mean loss of each global batch.
        names: of the floating-point variables, the optimizer's slots included.
        values: those variables after the steps, as the first local replica has them.
        spread: (variables,) how far the replicas' copies are from their mean, summed over all replicas.
        precision: `float64`, or `float32` where a trainable variable is not.
        neutralised: what `neutralise` has changed.
        always_random: layers that it could not change.
    """

    losses: np.ndarray
    names: list[str]
    values: list[np.ndarray]
    spread: np.ndarray
    precision: str
    neutralised: tuple[Neutralised, ...]
    always_random: list[str]


def first_step_of(config: RunConfig, train_examples: int) -> int:
    """0-based step the check begins with: the end of the first epoch, with its partial batch, is in the middle."""
    return max(0, config.steps_per_epoch(train_examples) - config.parity.steps // 2)


def train_steps(
    run: RunConfig,
    config: RunConfig,
    task: Task,
    dataset: PreparedDataset,
    strategy: tf.distribute.Strategy,
    *,
    shake: float = 0.0,
) -> Outcome:
    """The steps of `run` by the engine of `config`: model, optimizer and learning rate are the run's own.

    Args:
        run: what is checked.
        config: the same training on other devices, or `run` itself.
        task: this role.
        dataset: of the run.
        strategy: made from `config`.
        shake: share by which each weight is changed up or down first.
    """
    state = make_state(run, dataset, strategy)
    fixed = tf.range(min(FIXED_EXAMPLES, dataset.splits["train"]), dtype=tf.int64)
    neutralised = neutralise(state.model, open_examples(dataset, "train").take(fixed)[0], strategy)
    if shake:
        _shake(state, shake)
    first = first_step_of(run, dataset.splits["train"])
    state.step.assign(first)
    if state.learning_rate.step is None:
        state.optimizer.iterations.assign(first)
    engine = make_engine(config, dataset, strategy, state, task)
    losses = np.concatenate([done.losses for done in engine.run_steps(first, run.parity.steps)])
    variables = _variables(state)
    is_double = all(v.dtype == "float64" for v in state.model.trainable_variables)
    return Outcome(
        losses=losses,
        names=[path for path, _ in variables],
        values=[np.asarray(value, np.float64) for _, value in variables],
        spread=_spread([value for _, value in variables], strategy),
        precision="float64" if is_double else "float32",
        neutralised=neutralised,
        always_random=[x.name for x in random_layers(state.model) if not x._call_has_training_arg],
    )


def skips_together(config: RunConfig, task: Task, dataset: PreparedDataset, strategy: tf.distribute.Strategy) -> bool:
    """Whether an overflow in the last replica alone makes all replicas of a mixed_float16 run skip that step.

    Computes in the run's own precision; all roles of a synchronous strategy call it.
    """
    keras.config.set_dtype_policy("mixed_float16")
    # `Model.fit` leaves the step alone, and has the same optimizer.
    config = dataclasses.replace(config, precision="mixed_float16", engine="loop")
    state = make_state(config, dataset, strategy)
    optimizer = state.optimizer
    # No step overflows by itself.
    optimizer.dynamic_scale.assign(1.0)
    optimizer.scale_loss = _overflow_in_last(optimizer.scale_loss, state.step, strategy)
    engine = make_engine(config, dataset, strategy, state, task)
    for _ in engine.run_steps(0, SKIP_STEPS):
        pass
    variables = [v.value for v in [*state.model.trainable_variables, *optimizer.variables]]
    variables = [value for value in variables if value.dtype.is_floating]
    sizes = np.array([np.abs(value.numpy()).max(initial=1.0) for value in variables])
    # What is not finite is not near anything.
    are_equal = bool(np.all(_spread(variables, strategy) <= EQUAL * sizes))
    return are_equal and int(optimizer.iterations.numpy()) < SKIP_STEPS


def _overflow_in_last(
    scale_loss: Callable[[tf.Tensor], tf.Tensor], step: tf.Variable, strategy: tf.distribute.Strategy
) -> Callable[[tf.Tensor], tf.Tensor]:
    """As `scale_loss`, but infinite in the last replica at step 1."""

    def scale(loss: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        is_here = tf.logical_and(tf.equal(replica, strategy.num_replicas_in_sync - 1), tf.equal(step, 1))
        return scale_loss(loss) * tf.where(is_here, np.inf, 1.0)

    return scale


def _variables(state: TrainingState) -> list[tuple[str, tf.Variable]]:
    """All that hold fractions: weights, statistics and slots, without counters and the states of random generators."""
    variables = [(v.path, v.value) for v in [*state.model.variables, *state.optimizer.variables]]
    return [(path, value) for path, value in variables if value.dtype.is_floating]


def _shake(state: TrainingState, share: float) -> None:
    signs = np.random.default_rng(0)
    for variable in state.model.trainable_variables:
        value = np.asarray(variable.value)
        variable.assign(value * (1 + share * signs.choice([-1, 1], value.shape)))


def _spread(variables: list[tf.Variable], strategy: tf.distribute.Strategy) -> np.ndarray:
    if strategy.num_replicas_in_sync == 1:
        return np.zeros(len(variables))

    def spread_of_replica() -> tf.Tensor:
        context, mean = tf.distribute.get_replica_context(), tf.distribute.ReduceOp.MEAN
        values = [tf.cast(tf.identity(v), tf.float64) for v in variables]
        means = context.all_reduce(mean, values)
        away = [tf.reduce_max(tf.abs(v - m)) for v, m in zip(values, means, strict=True)]
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stack(away))

    per_replica = compiled(lambda: strategy.run(spread_of_replica))()
    return strategy.experimental_local_results(per_replica)[0].numpy()
