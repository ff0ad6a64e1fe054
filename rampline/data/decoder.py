"""Many encoded images to pixels, naming those that do not decode."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from rampline.compiled import compiled
from rampline.data.decode import decode, resize
from rampline.data.orientation import UPRIGHT, read_orientation


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
            return tf.map_fn(lambda image: decode_one(*image), images, fn_output_signature=signature)

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
