"""Encoded image to pixels: the same function for preparation and input pipeline."""

from __future__ import annotations

import tensorflow as tf


def decode(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Decode a JPEG, PNG, GIF (first frame) or BMP.

    Args:
        encoded: scalar string.
        channels: 1 (grey) or 3 (RGB); images with another number are converted.

    Returns:
        `(height, width, channels) uint8`.
    """
    return tf.io.decode_image(encoded, channels=channels, expand_animations=False)


def resize(image: tf.Tensor, image_shape: tuple[int, int, int]) -> tf.Tensor:
    """Resize bilinearly with antialiasing; the aspect ratio is not kept. `image_shape` uint8 in and out, rounded."""
    height, width, _ = image_shape
    resized = tf.image.resize(image, (height, width), method="bilinear", antialias=True)
    # Bilinear weights are not negative and sum to 1: nothing leaves 0..255, and to clip it costs a twentieth of it all.
    pixels = tf.cast(tf.round(resized), tf.uint8)
    return tf.ensure_shape(pixels, image_shape)


def decode_and_resize(encoded: tf.Tensor, image_shape: tuple[int, int, int]) -> tf.Tensor:
    """Decode and resize one image.

    Args:
        encoded: scalar string, a JPEG, PNG, GIF or BMP.
        image_shape: `(height, width, channels)`, channels 1 or 3.

    Returns:
        `image_shape` uint8.
    """
    return resize(decode(encoded, image_shape[2]), image_shape)
