"""The work of one replica: forward, backward, update; and forward for evaluation."""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from rampline.data.compiled import compiled
from rampline.training.state import TrainingState

Batch = dict[str, tf.Tensor]

LOSS_SUM, CORRECT, EXAMPLES, PENALTY_SUM = range(4)
SUMS = 4


def make_train_step(state: TrainingState, *, num_replicas_in_sync: int, xla: bool) -> Callable[[Batch], tf.Tensor]:
    """A function of one replica's batch that updates the weights and returns its sums, see `sums_of`.

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
    model, optimizer = state.model, state.optimizer
    variables = [v.value for v in model.trainable_variables]

    def loss_gradients(batch: Batch) -> tuple[list[tf.Tensor], tf.Tensor]:
        with tf.GradientTape() as tape:
            loss, sums = loss_and_sums(model, batch, num_replicas_in_sync)
            scaled = optimizer.scale_loss(loss)
        return tape.gradient(scaled, variables), sums

    return compiled(loss_gradients, jit_compile=xla or None, reduce_retracing=True)


def loss_and_sums(model: keras.Model, batch: Batch, num_replicas_in_sync: int) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss, a scalar, of one replica's batch in training, and its sums, see `sums_of`.

    The loss is the sum over the replica's examples divided by the examples of the whole global batch, so that the sum
    of the replicas' gradients is the gradient of the mean over what was really there, also in a partial last batch.
    """
    logits = model(batch["images"], training=True)
    losses, penalty = losses_of(logits, batch), penalty_of(model)
    loss = tf.reduce_sum(losses) / tf.cast(batch["global_examples"], losses.dtype)
    return loss + penalty / num_replicas_in_sync, sums_of(logits, losses, batch, penalty)


def penalty_of(model: keras.Model) -> tf.Tensor:
    """Scalar of `keras.config.floatx()`: the regularisation of the model's last call."""
    dtype = keras.config.floatx()
    return tf.add_n([tf.cast(term, dtype) for term in model.losses] or [tf.zeros((), dtype)])


def make_evaluation_step(model: keras.Model) -> Callable[[Batch], tf.Tensor]:
    """A function of one replica's padded batch that returns its sums, see `sums_of`; no penalty is counted."""

    def evaluation_step(batch: Batch) -> tf.Tensor:
        logits = model(batch["images"], training=False)
        losses = losses_of(logits, batch)
        return sums_of(logits, losses, batch, tf.zeros((), losses.dtype))

    return evaluation_step


def losses_of(logits: tf.Tensor, batch: Batch) -> tf.Tensor:
    """(n,) losses as `keras.config.floatx()`: float32 under mixed precision too, float64 in the parity check.

    Labels are (n,) classes, or (n, classes) shares.
    """
    labels, dtype = batch["labels"], keras.config.floatx()
    if labels.shape.rank == 1:
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    else:
        losses = keras.losses.categorical_crossentropy(tf.cast(labels, dtype), logits, from_logits=True)
    return tf.cast(losses, dtype) * tf.cast(batch["weights"], dtype)


def sums_of(logits: tf.Tensor, losses: tf.Tensor, batch: Batch, penalty: tf.Tensor) -> tf.Tensor:
    """(4,) of the losses' dtype: sum of losses, correct predictions, examples, penalty times examples.

    Rows of weight 0 count for nothing. Of a label that is shares, the largest counts.
    """
    weights, labels = tf.cast(batch["weights"], losses.dtype), batch["labels"]
    if labels.shape.rank > 1:
        labels = tf.argmax(labels, axis=-1, output_type=tf.int32)
    correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, losses.dtype) * weights
    examples = tf.reduce_sum(weights)
    return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(correct), examples, penalty * examples])
