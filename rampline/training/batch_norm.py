"""BatchNorm's moving statistics: every replica and worker keeps its own; averaged before evaluation and save."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from rampline.data.compiled import compiled


def moving_variables(model: keras.Model) -> list[keras.Variable]:
    """Moving means and variances of all BatchNormalization layers that train, nested ones too.

    Those of frozen layers stay as they are: the mean of equal numbers may be another in the last bit.
    """
    found = (layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization))
    layers = [layer for layer in found if layer.trainable]
    return [variable for layer in layers for variable in (layer.moving_mean, layer.moving_variance)]


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

    return compiled(lambda: strategy.run(average_replica))


def make_gather(model: keras.Model, strategy: tf.distribute.Strategy) -> Callable[[], np.ndarray] | None:
    """A function that returns the statistics of every replica on every worker; `None` for a model without any.

    All workers must call it together. It returns (num_replicas_in_sync, total) float32, float64 where a statistic is:
    one row for each replica, all statistics one after the other, in the order of `moving_variables`.
    """
    statistics = moving_statistics(model)
    if not statistics:
        return None
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
