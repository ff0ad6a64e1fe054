"""BatchNorm's moving statistics: every replica and worker keeps its own; averaged before evaluation and save."""

from __future__ import annotations

import keras
import tensorflow as tf


def moving_statistics(model: keras.Model) -> list[tf.Variable]:
    """Moving means and variances of all BatchNormalization layers, nested ones too."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    return [variable.value for layer in layers for variable in (layer.moving_mean, layer.moving_variance)]


def make_average(model: keras.Model, strategy: tf.distribute.Strategy) -> tf.types.experimental.GenericFunction | None:
    """A function that sets each statistic to its mean over all replicas; `None` for a model without any."""
    statistics = moving_statistics(model)
    if not statistics:
        return None

    def average_replica() -> None:
        context = tf.distribute.get_replica_context()
        means = context.all_reduce(tf.distribute.ReduceOp.MEAN, [tf.identity(v) for v in statistics])
        for variable, mean in zip(statistics, means, strict=True):
            variable.assign(mean)

    return tf.function(lambda: strategy.run(average_replica))
