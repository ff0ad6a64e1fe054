"""Datasets of batches: endless for training, from any step on; one masked pass for evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tensorflow as tf

from rampline.config import DataConfig
from rampline.data.compiled import as_written
from rampline.pipeline.augment import Augmented, load_augmentations
from rampline.pipeline.examples import Examples
from rampline.pipeline.order import EpochOrder, Share, evaluation_rows, evaluation_steps

# A batch this small, gathered from memory, costs less than the calls into TensorFlow that say what is in it: their
# order is then made for many steps at once, and no second core is woken for a batch.
_SMALL_BATCH_BYTES = 2**20
_GROUP_STEPS = 32


@dataclass(frozen=True, kw_only=True)
class ReplicaRange:
    """The replicas that one process feeds: `count` of them from `first` on, out of `total` over all processes."""

    first: int = 0
    count: int = 1
    total: int = 1

    def rows(self, global_batch_size: int) -> int:
        """Examples of the largest share of a full global batch."""
        return math.ceil(global_batch_size / self.total)


@as_written
def make_train_dataset(
    examples: Examples, *, order: EpochOrder, data: DataConfig, replicas: ReplicaRange, first_step: int
) -> tf.data.Dataset:
    """Endless batches for the replicas of one process: those of step `first_step`, then of the next, across epochs.

    Each element is one replica's share of one global batch, in the order of the replicas: what
    `strategy.distribute_datasets_from_function` expects.

    Returns:
        dataset of `{"images": (n, h, w, c) uint8, "labels": (n,) int32, "weights": (n,) float32, "global_examples": ()
        float32, "indices": (n,) int64}`; the index is -1 where the weight is 0. The labels are (n, classes) float32
        where `data.augment` mixes examples.
    """
    if _is_grouped(examples, order, data):
        return _prefetched(_make_grouped(examples, order=order, replicas=replicas, first_step=first_step), data)
    calls = tf.data.Dataset.counter(first_step * replicas.count)

    def make_batch(call: tf.Tensor) -> dict[str, tf.Tensor]:
        step, replica = call // replicas.count, replicas.first + call % replicas.count
        return _make_batch(
            examples,
            order=order,
            data=data,
            step=step,
            share=order.share(step, replica, replicas.total),
            replicas=replicas.total,
        )

    return _mapped(calls, make_batch, data)


@as_written
def make_steps_dataset(
    examples: Examples, *, order: EpochOrder, data: DataConfig, first_step: tf.Tensor, steps: tf.Tensor
) -> tf.data.Dataset:
    """Whole batches of `steps` steps from `first_step` on, for one worker; may be made inside a `tf.function`."""
    numbers = tf.data.Dataset.range(first_step, first_step + steps)
    return _mapped(numbers, lambda step: make_step_batch(examples, order=order, data=data, step=step), data)


def make_step_batch(
    examples: Examples, *, order: EpochOrder, data: DataConfig, step: tf.Tensor
) -> dict[str, tf.Tensor]:
    """The whole global batch of one step, as in `make_train_dataset` with one replica, and the `step` itself."""
    share = order.share(step, tf.constant(0), 1)
    return {**_make_batch(examples, order=order, data=data, step=step, share=share, replicas=1), "step": step}


@as_written
def make_evaluation_dataset(
    examples: Examples, *, total_examples: int, batch_size: int, replicas: ReplicaRange
) -> tf.data.Dataset:
    """One pass over a split, padded and masked: every example has weight 1 exactly once over all replicas.

    Each element is one replica's batch of `batch_size` rows: `{"images", "labels", "weights"}` as in
    `make_train_dataset`.
    """
    steps = evaluation_steps(replicas=replicas.total, batch_size=batch_size, examples=total_examples)

    def make_batch(call: tf.Tensor) -> dict[str, tf.Tensor]:
        step, replica = call // replicas.count, replicas.first + call % replicas.count
        rows = {"replicas": replicas.total, "batch_size": batch_size, "examples": total_examples}
        indices, weights = evaluation_rows(step, replica, **rows)
        images, labels = examples.take(indices)
        batch = {"images": images, "labels": labels, "weights": weights}
        return {name: tf.ensure_shape(value, (batch_size, *value.shape[1:])) for name, value in batch.items()}

    calls = tf.data.Dataset.range(steps * replicas.count)
    return calls.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _is_grouped(examples: Examples, order: EpochOrder, data: DataConfig) -> bool:
    """Not where files are read or images changed: that is worth all cores."""
    batch_bytes = order.global_batch_size * math.prod(examples.image_shape)
    return examples.storage == "tensor" and not data.augmentations and batch_bytes <= _SMALL_BATCH_BYTES


def _make_grouped(examples: Examples, *, order: EpochOrder, replicas: ReplicaRange, first_step: int) -> tf.data.Dataset:
    """The batches of `make_train_dataset`, with the order of `_GROUP_STEPS` steps made by one call."""
    per_epoch = math.ceil(order.steps_per_epoch / _GROUP_STEPS)
    epoch, step_of_epoch = divmod(first_step, order.steps_per_epoch)
    group, skipped = divmod(step_of_epoch, _GROUP_STEPS)

    def shuffle(number: tf.Tensor) -> tf.Tensor:
        first = number // per_epoch * order.steps_per_epoch + number % per_epoch * _GROUP_STEPS
        return order.indices_from(first, _GROUP_STEPS)

    def split(indices: tf.Tensor) -> tf.data.Dataset:
        def make_batch(call: tf.Tensor) -> dict[str, tf.Tensor]:
            number, replica = call // replicas.count, replicas.first + call % replicas.count
            share = order.share_within(indices, number, replica, replicas.total)
            return _describe_batch(*examples.take(share.indices), share, order, replicas.total)

        batches = -(-tf.size(indices, tf.int64) // order.global_batch_size)
        return tf.data.Dataset.range(batches * replicas.count).map(make_batch)

    groups = tf.data.Dataset.counter(epoch * per_epoch + group).map(shuffle)
    return groups.flat_map(split).skip(skipped * replicas.count)


def _make_batch(
    examples: Examples, *, order: EpochOrder, data: DataConfig, step: tf.Tensor, share: Share, replicas: int
) -> dict[str, tf.Tensor]:
    kinds = load_augmentations(data.augmentations)
    if kinds:
        rows = share.offset + tf.range(tf.size(share.indices, tf.int64))
        images, labels = Augmented(examples=examples, order=order, step=step, kinds=kinds).take(rows)
    else:
        images, labels = examples.take(share.indices)
    return _describe_batch(images, labels, share, order, replicas)


def _describe_batch(
    images: tf.Tensor, labels: tf.Tensor, share: Share, order: EpochOrder, replicas: int
) -> dict[str, tf.Tensor]:
    smallest = order.examples % order.global_batch_size or order.global_batch_size
    every_row_counts = smallest >= replicas
    return {
        "images": images,
        "labels": labels,
        "weights": share.weights,
        "global_examples": share.global_examples,
        "indices": share.indices if every_row_counts else tf.where(share.weights > 0, share.indices, -1),
    }


def on_devices(
    strategy: tf.distribute.Strategy, batches: tf.data.Dataset, data: DataConfig
) -> tf.distribute.DistributedDataset:
    """The replicas' shares, each on its device: TensorFlow copies them there ahead of the step, but for `off`."""
    ahead = {"experimental_per_replica_buffer_size": 0} if data.prefetch == "off" else {}
    return strategy.distribute_datasets_from_function(lambda _: batches, tf.distribute.InputOptions(**ahead))


def _mapped(numbers: tf.data.Dataset, make_batch, data: DataConfig) -> tf.data.Dataset:
    # Parallel calls work on batches ahead, which is prefetching too; the images of one are made in parallel anyway.
    calls = {} if data.prefetch == "off" else {"num_parallel_calls": tf.data.AUTOTUNE, "deterministic": True}
    return _prefetched(numbers.map(make_batch, **calls), data)


def _prefetched(batches: tf.data.Dataset, data: DataConfig) -> tf.data.Dataset:
    if data.prefetch != "off":
        return batches.prefetch(data.prefetch if isinstance(data.prefetch, int) else tf.data.AUTOTUNE)
    # TensorFlow would add both by itself.
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    options.experimental_optimization.map_parallelization = False
    return batches.with_options(options)
