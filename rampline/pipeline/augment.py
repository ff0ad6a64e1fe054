"""Random flips and crops, drawn per position of the global batch: the same images whatever the number of replicas."""

from __future__ import annotations

import tensorflow as tf

from rampline.pipeline.order import EpochOrder, Share


def augment(images: tf.Tensor, *, kind: str, order: EpochOrder, step: tf.Tensor, share: Share) -> tf.Tensor:
    """Augment (n, height, width, channels) uint8 images of one share of the global batch at `step`.

    `flip`: left-right with probability 1/2. `crop`: 1/8 reflected padding on each side, then a random window of the old
    size
    (He et al. 2016 pad 4 of 32 pixels).
    """
    # The draw is made for the whole global batch, and each replica keeps its rows.
    seed = tf.stack([tf.constant(order.seed, tf.int64), tf.cast(step, tf.int64)])
    draws = tf.random.stateless_uniform((order.global_batch_size, 3), seed)
    draws = draws[share.offset : share.offset + tf.shape(images, tf.int64)[0]]
    if kind in ("flip", "flip_crop"):
        images = tf.where(draws[:, 0, None, None, None] < 0.5, images, images[:, :, ::-1])
    if kind in ("crop", "flip_crop"):
        images = _crop(images, draws[:, 1:])
    return images


def _crop(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    height, width = images.shape[1], images.shape[2]
    pad_rows, pad_columns = height // 8, width // 8
    padded = tf.pad(images, [[0, 0], [pad_rows, pad_rows], [pad_columns, pad_columns], [0, 0]], mode="REFLECT")
    top = tf.cast(draws[:, 0] * (2 * pad_rows + 1), tf.int32)
    left = tf.cast(draws[:, 1] * (2 * pad_columns + 1), tf.int32)
    rows = tf.gather(padded, top[:, None] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(rows, left[:, None] + tf.range(width), axis=2, batch_dims=1)
