"""The work of one replica: forward, backward, update; and forward for evaluation."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from rampline.data.compiled import compiled
from rampline.training.objective import Batch
from rampline.training.state import TrainingState


def make_train_step(state: TrainingState, *, num_replicas_in_sync: int, xla: bool) -> Callable[[Batch], tf.Tensor]:
    """A function of one replica's batch that updates the weights and returns its sums, see `Objective.sums`.

    See `loss_and_sums` for the loss.
    """
    gradients = make_loss_gradients(state, num_replicas_in_sync=num_replicas_in_sync, xla=xla)

    def train_step(batch: Batch) -> tf.Tensor:
        values, sums = gradients(batch)
        state.optimizer.apply(values, state.model.trainable_variables)
        return sums

    return train_step


def make_loss_gradients(
    state: TrainingState, *, num_replicas_in_sync: int, xla: bool
) -> Callable[[Batch], tuple[list[tf.Tensor], tf.Tensor]]:
    """A function of one replica's batch that returns the gradients of its scaled loss, and its sums."""
    optimizer, variables = state.optimizer, [v.value for v in state.model.trainable_variables]

    def loss_gradients(batch: Batch) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape() as tape:
            loss, sums = loss_and_sums(state, batch, num_replicas_in_sync)
            scaled = optimizer.scale_loss(loss)
        return tape.gradient(scaled, variables), sums

    return compiled(loss_gradients, jit_compile=xla or None, reduce_retracing=True)


def loss_and_sums(state: TrainingState, batch: Batch, num_replicas_in_sync: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss, a scalar, of one replica's batch in training, and its sums, see `Objective.sums`.

    The loss is the sum over the replica's examples divided by the examples of the whole global batch, so that the sum
    of the replicas' gradients is the gradient of the mean over what was really there, also in a partial last batch.
    """
    objective, logits = state.objective, state.model(batch["images"], training=True)
    losses, penalty = objective.losses(logits, batch, training=True), penalty_of(state.model)
    loss = tf.reduce_sum(losses) / tf.cast(batch["global_examples"], losses.dtype)
    return loss + penalty / num_replicas_in_sync, objective.sums(logits, losses, batch, penalty)


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
