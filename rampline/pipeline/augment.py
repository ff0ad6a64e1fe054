"""Random flips and crops, drawn per position of the global batch: the same images whatever the number of replicas."""

from __future__ import annotations

import tensorflow as tf

from rampline.config.choices import AUGMENTATIONS
from rampline.pipeline.order import EpochOrder, Share


def augment(images: tf.Tensor, *, kind: str, order: EpochOrder, step: tf.Tensor, share: Share) -> tf.Tensor:
    """Augment (n, height, width, channels) uint8 images of one share of the global batch at `step`, as `kind` says."""
    # The draw is made for the whole global batch, and each replica keeps its rows.
    seed = tf.stack([tf.constant(order.seed, tf.int64), tf.cast(step, tf.int64)])
    draws = tf.random.stateless_uniform((order.global_batch_size, 3), seed)
    draws = draws[share.offset : share.offset + tf.shape(images, tf.int64)[0]]
    return AUGMENTATIONS[kind].load()(images, draws)


def flip(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Left-right with probability 1/2, by the first of an image's three numbers in [0, 1)."""
    return tf.where(draws[:, 0, None, None, None] < 0.5, images, images[:, :, ::-1])


def crop(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """1/8 reflected padding on each side, then a random window of the old size (He et al. 2016 pad 4 of 32 pixels).

    The window lies where the other two numbers say.
    """
    height, width = images.shape[1], images.shape[2]
    pad_rows, pad_columns = height // 8, width // 8
    padded = tf.pad(images, [[0, 0], [pad_rows, pad_rows], [pad_columns, pad_columns], [0, 0]], mode="REFLECT")
    top = tf.cast(draws[:, 1] * (2 * pad_rows + 1), tf.int32)
    left = tf.cast(draws[:, 2] * (2 * pad_columns + 1), tf.int32)
    rows = tf.gather(padded, top[:, None] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(rows, left[:, None] + tf.range(width), axis=2, batch_dims=1)


def flip_and_crop(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    return crop(flip(images, draws), draws)
