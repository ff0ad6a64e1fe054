"""Encoded image to pixels: the same function for preparation and input pipeline."""

from __future__ import annotations

import tensorflow as tf

from rampline.data.orientation import UPRIGHT

# libjpeg's, of height and width.
_REDUCTIONS = (1, 2, 4, 8)


def decode(
    encoded: tf.Tensor, image_shape: tuple[int, int, int], orientation: tf.Tensor | None = None
) -> tuple[tf.Tensor, tf.Tensor]:
    """Decode a JPEG, PNG, GIF (first frame), BMP or WebP, as far as it is needed for `image_shape`, and upright it.

    A JPEG is reduced to a half, a quarter or an eighth while it is decoded, as long as it stays as large as
    `image_shape` in both directions ("shrink on load"): libjpeg makes only so many pixels of each block of 8x8. It
    completes the last block for that, which moves what is at the right and lower edge: where that would be by more than
    3/8 of a pixel of the resized image, it is reduced less.

    Args:
        encoded: scalar string.
        image_shape: `(height, width, channels)` to be resized to; images with another number of channels than these, 1
            (grey) or 3 (RGB), are converted.
        orientation: scalar int32 from `read_orientation`; upright if left out.

    Returns:
        `(height, width, channels) uint8`, and the size of the whole image, `(height, width) int32`; both upright.
    """
    wanted = tf.constant(image_shape[:2])
    if orientation is not None:
        wanted = tf.where(_is_transposed(orientation), wanted[::-1], wanted)
    image, size = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _decode_jpeg(encoded, wanted, image_shape[2]),
        lambda: _decode_other(encoded, image_shape[2]),
    )
    if orientation is None:
        return image, size
    return tf.cond(orientation == UPRIGHT, lambda: (image, size), lambda: _upright(image, size, orientation))


def _is_transposed(orientation: tf.Tensor) -> tf.Tensor:
    return orientation >= 5


def _upright(image: tf.Tensor, size: tf.Tensor, orientation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """EXIF counts where row 0 and column 0 of the pixels are: rows and columns exchanged from 5 on, then mirrored."""
    image, size = tf.cond(
        _is_transposed(orientation), lambda: (tf.transpose(image, (1, 0, 2)), size[::-1]), lambda: (image, size)
    )
    mirrored = tf.stack([_is_one_of(orientation, 3, 4, 7, 8), _is_one_of(orientation, 2, 3, 6, 7)])
    steps = tf.where(mirrored, -1, 1)
    return tf.ensure_shape(image[:: steps[0], :: steps[1]], image.shape), size


def _is_one_of(orientation: tf.Tensor, *values: int) -> tf.Tensor:
    return tf.reduce_any(orientation == tf.constant(values))


def _decode_jpeg(encoded: tf.Tensor, wanted: tf.Tensor, channels: int) -> tuple[tf.Tensor, tf.Tensor]:
    size = tf.io.extract_jpeg_shape(encoded)[:2]
    image = tf.switch_case(
        _choose_reduction(size, wanted),
        [lambda ratio=ratio: tf.io.decode_jpeg(encoded, channels=channels, ratio=ratio) for ratio in _REDUCTIONS],
    )
    return image, size


def _choose_reduction(size: tf.Tensor, wanted: tf.Tensor) -> tf.Tensor:
    """Index into `_REDUCTIONS`, scalar int32; `size` and `wanted` are (height, width) as the pixels are stored."""
    factors = tf.constant(_REDUCTIONS[1:])[:, None]
    reduced = (size + factors - 1) // factors
    moved = (reduced * factors - size) * wanted  # by moved / size pixels
    possible = tf.reduce_all((reduced >= wanted) & (8 * moved <= 3 * size), axis=1)
    # What is not possible is not with a greater factor either.
    return tf.math.count_nonzero(possible, dtype=tf.int32)


def _decode_other(encoded: tf.Tensor, channels: int) -> tuple[tf.Tensor, tf.Tensor]:
    image = tf.io.decode_image(encoded, channels=channels, expand_animations=False)
    return image, tf.shape(image)[:2]


def resize(image: tf.Tensor, image_shape: tuple[int, int, int]) -> tf.Tensor:
    """Resize, each pixel to the mean of the area that it covers; the aspect ratio is not kept.

    An image that is smaller than `image_shape` in a direction is resized bilinearly, with antialiasing in the other
    one. A photograph that is made smaller so takes TensorFlow longer than decoding it, and twice as long as the mean.

    Args:
        image: `(height, width, channels) uint8`.
        image_shape: `(height, width, channels)` of the result.

    Returns:
        `image_shape` uint8, rounded.
    """
    size = image_shape[:2]
    resized = tf.cond(
        tf.reduce_all(tf.shape(image)[:2] >= size),
        lambda: tf.image.resize(image, size, method="area"),
        lambda: tf.image.resize(image, size, method="bilinear", antialias=True),
    )
    # Weights are not negative and sum to 1: nothing leaves 0..255, and to clip it costs a twentieth of it all.
    pixels = tf.cast(tf.round(resized), tf.uint8)
    return tf.ensure_shape(pixels, image_shape)


def decode_and_resize(
    encoded: tf.Tensor, image_shape: tuple[int, int, int], orientation: tf.Tensor | None = None
) -> tf.Tensor:
    """Decode and resize one image.

    Args:
        encoded: scalar string, see `decode`.
        image_shape: `(height, width, channels)`, channels 1 or 3.
        orientation: see `decode`.

    Returns:
        `image_shape` uint8.
    """
    image, _ = decode(encoded, image_shape, orientation)
    return resize(image, image_shape)
