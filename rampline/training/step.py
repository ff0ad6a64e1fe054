"""The work of one replica: forward, backward, update; and forward for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from rampline.data.compiled import compiled, repeat
from rampline.training.batch_norm import is_synchronized
from rampline.training.objective import Batch
from rampline.training.random_draws import begin_step, seeds_of
from rampline.training.state import TrainingState


def make_train_step(state: TrainingState, *, xla: bool, micro_batch: int | None = None) -> Callable[[Batch], tf.Tensor]:
    """A function of one replica's batch that updates the weights and returns its sums, see `Objective.sums`.

    See `loss_and_sums` for the loss, and `accumulate` for `micro_batch`.
    """
    gradients = make_loss_gradients(state, micro_batch=micro_batch, xla=xla)
    seeds = seeds_of(state.model)

    def train_step(batch: Batch) -> tf.Tensor:
        if micro_batch is not None:
            begin_step(seeds, state.step)
        values, sums = gradients(batch)
        state.optimizer.apply(values, state.model.trainable_variables)
        return sums

    return train_step


def make_loss_gradients(
    state: TrainingState, *, xla: bool, micro_batch: int | None = None
) -> Callable[[Batch], tuple[list[tf.Tensor], tf.Tensor]]:
    """A function of one replica's batch that returns the gradients of its scaled loss, and its sums."""
    optimizer, variables = state.optimizer, [v.value for v in state.model.trainable_variables]

    def gradients_of(part: Batch, _: list) -> tuple[list[tf.Tensor | None], tf.Tensor, list]:
        with tf.GradientTape() as tape:
            loss, sums = loss_and_sums(state, part)
            scaled = optimizer.scale_loss(loss)
        return tape.gradient(scaled, variables), sums, []

    def loss_gradients(batch: Batch) -> tuple[list[tf.Tensor], tf.Tensor]:
        return accumulate(gradients_of, batch, micro_batch, variables, width=state.objective.width)[:2]

    if is_synchronized(state.model) and not xla:
        # In a function inside of that of the replica, TensorFlow refuses what replicas exchange.
        return loss_gradients
    return compiled(loss_gradients, jit_compile=xla or None, reduce_retracing=True)


def accumulate(
    gradients_of: Callable[[Batch, list], tuple[list[tf.Tensor | None], tf.Tensor, list]],
    batch: Batch,
    micro_batch: int | None,
    variables: Sequence[Any],
    carried: Sequence[tf.Tensor] = (),
    *,
    width: int,
) -> tuple[list[tf.Tensor | None], tf.Tensor, list[tf.Tensor]]:
    """The sums of the gradients, and of the sums, of a batch's parts, which are computed one after the other.

    Args:
        gradients_of: of a part, and what the part before has carried on, to the gradients, the sums, and what it
            carries on itself.
        batch: of one replica.
        micro_batch: rows of a part at most; `None`: the batch is one part.
        variables: what the gradients are of: their shapes and dtypes.
        carried: what the first part gets.
        width: of the sums.
    """
    if micro_batch is None:
        return gradients_of(batch, list(carried))
    rows = tf.shape(batch["labels"])[0]
    parts, missing = -(-rows // micro_batch), set[int]()

    def add_part(
        i: tf.Tensor, totals: list[tf.Tensor], sums: tf.Tensor, carried: list[tf.Tensor]
    ) -> tuple[list[tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        first = i * micro_batch
        part = {k: v[first : first + micro_batch] if v.shape.rank else v for k, v in batch.items()}
        gradients, more, carried = gradients_of(part, carried)
        missing.update(number for number, gradient in enumerate(gradients) if gradient is None)
        added = [t if g is None else t + tf.convert_to_tensor(g) for t, g in zip(totals, gradients, strict=True)]
        return added, sums + more, carried

    zeros = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    sums = tf.zeros((width,), keras.config.floatx())
    # One at a time: memory holds the work of one.
    totals, sums, last = repeat(parts, add_part, zeros, sums, list(carried), at_once=1)
    return [None if number in missing else total for number, total in enumerate(totals)], sums, last


def loss_and_sums(state: TrainingState, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss, a scalar, of one replica's batch in training, and its sums, see `Objective.sums`.

    The loss is the sum over the replica's examples divided by the examples of the whole global batch, so that the sum
    of the replicas' gradients is the gradient of the mean over what was really there, also in a partial last batch. The
    penalty counts by the same examples: what a layer gives out is penalised by its mean over the rows of the call.
    """
    objective, logits = state.objective, state.model(batch["images"], training=True)
    losses, penalty = objective.losses(logits, batch, training=True), penalty_of(state.model)
    examples, global_examples = (tf.cast(batch[name], losses.dtype) for name in ("weights", "global_examples"))
    share = tf.reduce_sum(examples) / global_examples
    loss = tf.reduce_sum(losses) / global_examples
    return loss + penalty * share, objective.sums(logits, losses, batch, penalty)


def penalty_of(model: keras.Model) -> tf.Tensor:
    """Scalar of `keras.config.floatx()`: the regularisation of the model's last call."""
    dtype = keras.config.floatx()
    return tf.add_n([tf.cast(term, dtype) for term in model.losses] or [tf.zeros((), dtype)])


def make_evaluation_step(state: TrainingState) -> Callable[[Batch], tf.Tensor]:
    """A function of one replica's padded batch that returns its sums, see `Objective.sums`; no penalty is counted."""
    model, objective = state.model, state.objective

    def evaluation_step(batch: Batch) -> tf.Tensor:
        logits = model(batch["images"], training=False)
        losses = objective.losses(logits, batch, training=False)
        return objective.sums(logits, losses, batch, tf.zeros((), losses.dtype))

    return evaluation_step
