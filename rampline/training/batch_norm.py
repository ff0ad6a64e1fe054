"""BatchNorm: its moving statistics, and its training by TensorFlow's fused operation.

Every replica and worker keeps statistics of its own; they are averaged before evaluation and save. Keras 3 puts the
operation together from a dozen, each of which goes over the whole batch once more, forward and backward: with
MobileNetV2 on a processor that is more work than all the convolutions. Keras knows:
https://github.com/keras-team/keras-core/issues/225
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.data.compiled import compiled

# cuDNN takes none that is smaller, and TensorFlow would silently raise it.
_SMALLEST_EPSILON = 1.001e-5
_FUSED_DTYPES = (tf.float32, tf.float16, tf.bfloat16)


def moving_variables(model: keras.Model) -> list[keras.Variable]:
    """Moving means and variances of all BatchNormalization layers that train, nested ones too; more with `renorm`.

    Those of frozen layers stay as they are: the mean of equal numbers may be another in the last bit.
    """
    found = (layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization))
    layers = [layer for layer in found if layer.trainable]
    return [variable for layer in layers for variable in _statistics_of(layer)]


def _statistics_of(layer: keras.layers.BatchNormalization) -> list[keras.Variable]:
    statistics = [layer.moving_mean, layer.moving_variance]
    return [*statistics, layer.moving_stddev, layer.renorm_mean, layer.renorm_stddev] if layer.renorm else statistics


def is_synchronized(model: keras.Model) -> bool:
    """Whether the replicas exchange the statistics of their batches in each step, for a layer that trains."""
    layers = model._flatten_layers()
    return any(isinstance(x, keras.layers.BatchNormalization) and x.synchronized and x.trainable for x in layers)


def moving_statistics(model: keras.Model) -> list[tf.Variable]:
    """The distributed variables behind `moving_variables`."""
    return [variable.value for variable in moving_variables(model)]


def read_row(statistics: Sequence[tf.Variable]) -> tf.Tensor:
    """(total,) statistics one after the other, in the widest of their types."""
    dtype = widest(statistics)
    return tf.concat([tf.reshape(tf.cast(v, dtype), [-1]) for v in statistics], axis=0)


def assign_row(statistics: Sequence[tf.Variable], row: tf.Tensor) -> None:
    """Set the statistics to what `read_row` has returned; called in a replica."""
    parts = tf.split(row, [v.shape.num_elements() for v in statistics])
    for variable, part in zip(statistics, parts, strict=True):
        variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))


def widest(values: Sequence[tf.Variable | tf.Tensor]) -> tf.DType:
    """float64 where one of the values is, else float32."""
    return tf.float64 if any(v.dtype == tf.float64 for v in values) else tf.float32


def make_average(model: keras.Model, strategy: tf.distribute.Strategy) -> tf.types.experimental.GenericFunction:
    """A function that sets each statistic to its mean over all replicas."""
    statistics = moving_statistics(model)

    def average_replica() -> None:
        context = tf.distribute.get_replica_context()
        means = context.all_reduce(tf.distribute.ReduceOp.MEAN, [tf.identity(v) for v in statistics])
        for variable, mean in zip(statistics, means, strict=True):
            variable.assign(mean)

    return compiled(lambda: strategy.run(average_replica))


def make_gather(model: keras.Model, strategy: tf.distribute.Strategy) -> Callable[[], np.ndarray]:
    """A function that returns the statistics of every replica on every worker; there must be some.

    All workers must call it together. It returns (num_replicas_in_sync, total) float32, float64 where a statistic is:
    one row for each replica, all statistics one after the other, in the order of `moving_variables`.
    """
    statistics = moving_statistics(model)
    shape = (strategy.num_replicas_in_sync, sum(v.shape.num_elements() for v in statistics))

    def gather_replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        row = read_row(statistics)
        # A sum of zeros and one row is exact, and unlike a gather it says which row is whose.
        own = tf.scatter_nd([[context.replica_id_in_sync_group]], row[None], shape)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, own)

    gather = compiled(lambda: strategy.experimental_local_results(strategy.run(gather_replica))[0])
    return lambda: gather().numpy()


def write_statistics(model: keras.Model, strategy: tf.distribute.Strategy, values: np.ndarray) -> None:
    """Set the statistics of each replica to its row of `values`, which `make_gather`'s function has returned.

    Written by another number of replicas, all get the mean over them.
    """
    statistics, replicas = moving_statistics(model), strategy.num_replicas_in_sync
    if values.shape[1] != sum(v.shape.num_elements() for v in statistics):
        return  # of a version that wrote those of frozen layers, too
    if len(values) != replicas:
        values = np.broadcast_to(mean_statistics(values), (replicas, values.shape[1]))
    rows = tf.constant(values)

    def write_replica() -> None:
        assign_row(statistics, rows[tf.distribute.get_replica_context().replica_id_in_sync_group])

    compiled(lambda: strategy.run(write_replica))()


def mean_statistics(values: np.ndarray) -> np.ndarray:
    """(total,) mean over replicas of (replicas, total) statistics, summed in float64."""
    return values.mean(axis=0, dtype=np.float64).astype(values.dtype)


def split_statistics(model: keras.Model, row: np.ndarray) -> list[np.ndarray]:
    """(total,) statistics of one replica as one array for each of `moving_variables`."""
    variables = moving_variables(model)
    ends = np.cumsum([np.prod(v.shape, dtype=int) for v in variables])
    parts = zip(variables, np.split(row, ends[:-1]), strict=True)
    return [part.reshape(v.shape).astype(v.dtype) for v, part in parts]


def fuse_batch_norm(model: keras.Model) -> int:
    """Let the BatchNormalization layers of a model train by the fused operation, nested ones too.

    What a layer computes stays the same up to rounding: outputs, gradients, and moving statistics, which hold the
    variance of the batch itself (divided by n) as Keras' do. Evaluation, frozen layers, and what the operation cannot
    do (a mask, images with the channels first, other ranks than 4, float64, an epsilon below 1.001e-5) stay with Keras;
    so do layers with `renorm` or `synchronized`, and subclasses with a `call` of their own. Weights, configuration and
    what is saved do not change.

    Returns:
        how many layers that is.
    """
    layers = [layer for layer in model._flatten_layers() if _can_fuse(layer)]
    for layer in layers:
        layer.call = partial(_call, layer, layer.call)
    return len(layers)


def _can_fuse(layer: keras.layers.Layer) -> bool:
    return (
        isinstance(layer, keras.layers.BatchNormalization)
        and type(layer).call is keras.layers.BatchNormalization.call
        and not (layer.renorm or layer.synchronized)
        and layer.axis in (-1, 3)
        and layer.epsilon >= _SMALLEST_EPSILON
    )


def _call(
    layer: keras.layers.BatchNormalization,
    keras_call: Callable[..., tf.Tensor],
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: Any = None,
) -> tf.Tensor:
    is_fused = training and layer.trainable and mask is None
    if not is_fused or len(inputs.shape) != 4 or inputs.dtype not in _FUSED_DTYPES:
        return keras_call(inputs, training=training, mask=mask)
    channels = inputs.shape[-1]
    outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        inputs,
        scale=tf.ones((channels,)) if layer.gamma is None else keras.ops.cast(layer.gamma, "float32"),
        offset=tf.zeros((channels,)) if layer.beta is None else keras.ops.cast(layer.beta, "float32"),
        epsilon=layer.epsilon,
        is_training=True,
    )
    # The operation divides by n - 1: https://github.com/tensorflow/tensorflow/issues/55545
    values = tf.cast(tf.size(inputs, out_type=tf.int64) // channels, tf.float32)
    _follow(layer.moving_mean, mean, layer.momentum)
    _follow(layer.moving_variance, variance * (values - 1.0) / values, layer.momentum)
    return tf.cast(outputs, layer.compute_dtype)


def _follow(moving: keras.Variable, value: tf.Tensor, momentum: float) -> None:
    moving.assign(keras.ops.cast(moving, "float32") * momentum + value * (1.0 - momentum))
