"""What a training minimises and measures: the loss of an example, and the sums over examples that figures come from.

A row of sums adds up: over the examples of a replica, over replicas, workers and steps. The state of a Keras metric
does so too, and stands behind the row's own figures: a metric is exact whatever the number of replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig

Batch = dict[str, tf.Tensor]
# Of labels, (n,) classes or (n, classes) shares, and (n, classes) logits: a loss for each example, (n,).
LossFunction = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

LOSS_SUM, CORRECT, EXAMPLES, PENALTY_SUM = range(4)
SUMS = 4


class Objective:
    """The loss and the metrics of a run.

    Args:
        loss: of each example.
        metrics: by their names, with variables made, which only lend their shapes; each takes labels as `one_hot` says.
        one_hot: whether the metrics take labels as (n, classes) shares; else they take (n,) classes.
        class_weights: (classes,) what the loss of an example is multiplied by in training; `None` for 1.
    """

    def __init__(
        self,
        loss: LossFunction,
        metrics: Mapping[str, keras.metrics.Metric] | None = None,
        *,
        one_hot: bool = False,
        class_weights: np.ndarray | None = None,
    ) -> None:
        self._loss, self._metrics, self._one_hot = loss, dict(metrics or {}), one_hot
        self._class_weights = class_weights

    @property
    def width(self) -> int:
        """Figures in a row of sums."""
        return SUMS + sum(sum(_sizes(metric)) for metric in self._metrics.values())

    def losses(self, logits: tf.Tensor, batch: Batch, *, training: bool) -> tf.Tensor:
        """(n,) losses as `keras.config.floatx()`: float32 under mixed precision too, float64 in the parity check.

        So are the logits that they are computed from, whatever a user's network gives. A row of weight 0 has the loss
        0. Class weights count in training alone, as in `Model.fit`.
        """
        dtype = keras.config.floatx()
        losses = tf.cast(self._loss(batch["labels"], tf.cast(logits, dtype)), dtype) * tf.cast(batch["weights"], dtype)
        if training and self._class_weights is not None:
            losses *= tf.cast(self.weights_of(batch["labels"]), dtype)
        return losses

    def weights_of(self, labels: tf.Tensor) -> tf.Tensor:
        """(n,) class weights of examples; of mixed labels the mean by their shares."""
        if self._class_weights is None:
            return tf.ones(tf.shape(labels)[:1])
        weights = tf.constant(self._class_weights, tf.float32)
        return tf.gather(weights, labels) if labels.shape.rank == 1 else tf.linalg.matvec(labels, weights)

    def sums(self, logits: tf.Tensor, losses: tf.Tensor, batch: Batch, penalty: tf.Tensor) -> tf.Tensor:
        """(width,) of the losses' dtype: sum of losses, correct predictions, examples, penalty times examples, metrics.

        Rows of weight 0 count for nothing.
        """
        weights, labels = tf.cast(batch["weights"], losses.dtype), classes_of(batch["labels"])
        correct = tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int32) == labels, losses.dtype) * weights
        examples = tf.reduce_sum(weights)
        own = tf.stack([tf.reduce_sum(losses), tf.reduce_sum(correct), examples, penalty * examples])
        if not self._metrics:
            return own
        # Not all of Keras' take the parity check's float64.
        logits, weights = tf.cast(logits, tf.float32), tf.cast(weights, tf.float32)
        taken = shares_of(batch["labels"], logits) if self._one_hot else labels
        states = [
            tf.reshape(tf.cast(state, losses.dtype), [-1])
            for metric in self._metrics.values()
            for state in increments(metric, taken, logits, weights)
        ]
        return tf.concat([own, *states], axis=0)

    def figures(self, sums: Sequence[float] | np.ndarray) -> dict[str, float]:
        """The metrics of the examples that a row of sums is over, by name."""
        rest, figures = np.asarray(sums[SUMS:]), {}
        for name, metric in self._metrics.items():
            *parts, rest = np.split(rest, np.cumsum(_sizes(metric)))
            states = [
                tf.constant(part.reshape(v.shape), v.dtype) for part, v in zip(parts, metric.variables, strict=True)
            ]
            figures[name] = float(metric.stateless_result(states))
        return figures


def increments(
    metric: keras.metrics.Metric, labels: tf.Tensor, logits: tf.Tensor, weights: tf.Tensor
) -> list[tf.Tensor]:
    """What these examples add to the state of a metric."""
    zeros = [tf.zeros(v.shape, v.dtype) for v in metric.variables]
    return metric.stateless_update_state(zeros, labels, logits, sample_weight=weights)


def _sizes(metric: keras.metrics.Metric) -> list[int]:
    return [int(np.prod(v.shape)) for v in metric.variables]


def classes_of(labels: tf.Tensor) -> tf.Tensor:
    """(n,) int32 classes; of mixed labels the one with the largest share."""
    return labels if labels.shape.rank == 1 else tf.argmax(labels, axis=-1, output_type=tf.int32)


def shares_of(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """(n, classes) shares of the classes, in the dtype of the logits."""
    if labels.shape.rank == 1:
        return tf.one_hot(labels, logits.shape[-1] or tf.shape(logits)[-1], dtype=logits.dtype)
    return tf.cast(labels, logits.dtype)


def make_cross_entropy(label_smoothing: float) -> LossFunction:
    """Keras' cross-entropy of logits; smoothed labels have `label_smoothing` spread over all classes."""

    def cross_entropy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        if labels.shape.rank == 1 and not label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        shares = shares_of(labels, logits)
        return keras.losses.categorical_crossentropy(shares, logits, from_logits=True, label_smoothing=label_smoothing)

    return cross_entropy


def make_metrics(names: Sequence[str]) -> dict[str, keras.metrics.Metric]:
    """The metrics of a study by name: `top_5` and the like."""
    return {name: keras.metrics.SparseTopKCategoricalAccuracy(int(name.removeprefix("top_")), name) for name in names}


def make_class_weights(config: RunConfig, labels: np.ndarray, classes: int) -> np.ndarray | None:
    """(classes,) float32 as scikit-learn's `balanced`: examples / (classes * examples of the class)."""
    if config.data.class_weights == "none":
        return None
    counts = np.bincount(labels, minlength=classes)
    return (len(labels) / (classes * np.maximum(counts, 1))).astype(np.float32)
