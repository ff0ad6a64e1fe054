"""Datasets of batches: endless for training, from any step on; one masked pass for evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from rampline.config import DataConfig
from rampline.pipeline.augment import augment
from rampline.pipeline.examples import Examples
from rampline.pipeline.order import EpochOrder, Share, evaluation_rows, evaluation_steps


@dataclass(frozen=True, kw_only=True)
class ReplicaRange:
    """The replicas that one process feeds: `count` of them from `first` on, out of `total` over all processes."""

    first: int = 0
    count: int = 1
    total: int = 1


def make_train_dataset(
    examples: Examples, *, order: EpochOrder, data: DataConfig, replicas: ReplicaRange, first_step: int
) -> tf.data.Dataset:
    """Endless batches for the replicas of one process: those of step `first_step`, then of the next, across epochs.

    Each element is one replica's share of one global batch, in the order of the replicas: what
    `strategy.distribute_datasets_from_function` expects.

    Returns:
        dataset of `{"images": (n, h, w, c) uint8, "labels": (n,) int32, "weights": (n,) float32, "global_examples": ()
        float32, "indices": (n,) int64}`; the index is -1 where the weight is 0.
    """
    calls = tf.data.Dataset.counter(first_step * replicas.count)

    def make_batch(call: tf.Tensor) -> dict[str, tf.Tensor]:
        step, replica = call // replicas.count, replicas.first + call % replicas.count
        return _make_batch(
            examples, order=order, data=data, step=step, share=order.share(step, replica, replicas.total)
        )

    return _prefetched(calls, make_batch, data)


def make_steps_dataset(
    examples: Examples, *, order: EpochOrder, data: DataConfig, first_step: tf.Tensor, steps: tf.Tensor
) -> tf.data.Dataset:
    """Whole batches of `steps` steps from `first_step` on, for one worker; may be made inside a `tf.function`."""
    numbers = tf.data.Dataset.range(first_step, first_step + steps)
    return _prefetched(numbers, lambda step: make_step_batch(examples, order=order, data=data, step=step), data)


def make_step_batch(
    examples: Examples, *, order: EpochOrder, data: DataConfig, step: tf.Tensor
) -> dict[str, tf.Tensor]:
    """The whole global batch of one step, as in `make_train_dataset` with one replica."""
    return _make_batch(examples, order=order, data=data, step=step, share=order.share(step, tf.constant(0), 1))


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


def _make_batch(
    examples: Examples, *, order: EpochOrder, data: DataConfig, step: tf.Tensor, share: Share
) -> dict[str, tf.Tensor]:
    images, labels = examples.take(share.indices)
    if data.augment != "none":
        images = augment(images, kind=data.augment, order=order, step=step, share=share)
    return {
        "images": images,
        "labels": labels,
        "weights": share.weights,
        "global_examples": share.global_examples,
        "indices": tf.where(share.weights > 0, share.indices, -1),
    }


def _prefetched(numbers: tf.data.Dataset, make_batch, data: DataConfig) -> tf.data.Dataset:
    if data.prefetch == "off":
        return numbers.map(make_batch)
    batches = numbers.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return batches.prefetch(tf.data.AUTOTUNE if data.prefetch == "auto" else data.prefetch)
