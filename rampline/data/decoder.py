"""Many encoded images to pixels, naming those that do not decode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from rampline.data.compiled import compiled
from rampline.data.orientation import UPRIGHT, read_orientation

# libjpeg's, of height and width.
_REDUCTIONS = (1, 2, 4, 8)
# First bytes of what TensorFlow does not make grey by itself: BMP, GIF and WebP. Then the palette of a grey BMP.
_ONLY_RGB = (b"BM", b"GI", b"RI")
_GREYS = bytes(grey * part for grey in range(256) for part in (1, 1, 1, 0))


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
    with tf.control_dependencies([_check_palette(encoded)]):
        decode = functools.partial(tf.io.decode_image, tf.identity(encoded), expand_animations=False)
    if channels == 1:
        is_rgb = tf.reduce_any(tf.strings.substr(encoded, 0, 2) == _ONLY_RGB)
        # Not with the channels that the file has: of an animated WebP they end the process.
        image = tf.cond(is_rgb, lambda: tf.image.rgb_to_grayscale(decode(channels=3)), lambda: decode(channels=1))
    else:
        image = decode(channels=channels)
    return image, tf.shape(image)[:2]


def _check_palette(encoded: tf.Tensor) -> Any:
    """TensorFlow takes the indices of a BMP of 8 bits for its pixels: they are where the palette is of greys."""

    def is_grey() -> tf.Tensor:
        header_bytes = tf.io.decode_raw(tf.strings.substr(encoded, 14, 1), tf.uint8)[0]
        return tf.strings.substr(encoded, 14 + tf.cast(header_bytes, tf.int32), len(_GREYS)) == _GREYS

    # A shorter one than its header is TensorFlow's to refuse.
    is_bmp = (tf.strings.substr(encoded, 0, 2) == b"BM") & (tf.strings.length(encoded) >= 54)
    has_palette = tf.cond(is_bmp, lambda: tf.strings.substr(encoded, 28, 2) == b"\x08\x00", lambda: False)
    is_right = tf.cond(has_palette, is_grey, lambda: True)
    return tf.debugging.Assert(is_right, ["a BMP with a palette of colours"])


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
    """`decode` and `resize` one image: `image_shape` uint8."""
    image, _ = decode(encoded, image_shape, orientation)
    return resize(image, image_shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedImage:
    """What became of one encoded image.

    Attributes:
        pixels: `(height, width, channels) uint8` after resizing; `None` if it does not decode.
        width: in pixels, upright, before resizing; 0 if it does not decode.
        height: likewise.
        problem: why it does not decode, else empty.
    """

    pixels: np.ndarray | None
    width: int = 0
    height: int = 0
    problem: str = ""


def compute_in_one_thread() -> None:
    """Leave TensorFlow a thread for each of its pools: for processes of which each core has one.

    Raises:
        RuntimeError: when TensorFlow has run an operation before, in this process.
    """
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)


class Decoder:
    """Decodes lists of images with the function that the input pipeline uses; safe to call from several threads.

    Pickled, it is its image shape: each process makes what it needs of TensorFlow, once.
    """

    def __init__(self, image_shape: tuple[int, int, int]) -> None:
        def decode_one(encoded: tf.Tensor, orientation: tf.Tensor | None = None) -> tuple[tf.Tensor, tf.Tensor]:
            image, original_size = decode(encoded, image_shape, orientation)
            return resize(image, image_shape), original_size

        def decode_all(*images: tf.Tensor) -> Any:
            signature = (tf.TensorSpec(image_shape, tf.uint8), tf.TensorSpec((2,), tf.int32))
            # One after the other: this call has a core to itself, and ten images of 100 megapixels fill the memory.
            return tf.map_fn(
                lambda image: decode_one(*image), images, fn_output_signature=signature, parallel_iterations=1
            )

        # One call for many images: a call per image would cost more than decoding a small one.
        strings, numbers = tf.TensorSpec((None,), tf.string), tf.TensorSpec((None,), tf.int32)
        self._image_shape = image_shape
        # To ask each image for its orientation takes 3 % of a small photograph's time, and most are upright.
        self._decode_upright = compiled(decode_all, input_signature=[strings])
        self._decode_turned = compiled(decode_all, input_signature=[strings, numbers])

    def __reduce__(self) -> tuple[Callable[..., Decoder], tuple[tuple[int, int, int]]]:
        return _decoder_of_this_process, (self._image_shape,)

    def __call__(self, encoded: list[bytes]) -> list[DecodedImage]:
        """Decode and resize each of `encoded`; one that is broken does not disturb the others."""
        orientations = [read_orientation(content) for content in encoded]
        is_upright = all(orientation == UPRIGHT for orientation in orientations)
        try:
            images, sizes = self._decode_upright(encoded) if is_upright else self._decode_turned(encoded, orientations)
        except tf.errors.InvalidArgumentError as error:
            if len(encoded) == 1:
                return [DecodedImage(pixels=None, problem=_reason(error))]
            return [self([content])[0] for content in encoded]
        return [
            DecodedImage(pixels=image, width=int(width), height=int(height))
            for image, (height, width) in zip(images.numpy(), sizes.numpy(), strict=True)
        ]


@functools.cache
def _decoder_of_this_process(image_shape: tuple[int, int, int]) -> Decoder:
    return Decoder(image_shape)


def _reason(error: tf.errors.OpError) -> str:
    """What the decoder says, without TensorFlow's account of where in the graph it was said."""
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Graph execution", "Detected at", "{{", "[[", "File"))]
    return (said or ["it does not decode"])[0].partition("{{node")[0].strip()
