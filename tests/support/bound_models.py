"""Networks whose trainings are held back by one thing each, imported by role processes as `bound_models:NAME`."""

import os
import time
from typing import Any

import keras
import tensorflow as tf

import rampline.pipeline.examples as examples

DECODE_SECONDS = float(os.environ.get("RAMPLINE_DECODE_SECONDS", "0.004"))


def slow_to_decode(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A network in a process whose decoder sleeps for `DECODE_SECONDS` over each image."""
    decode = examples.decode_and_resize

    def decode_slowly(encoded: tf.Tensor, *rest: Any) -> tf.Tensor:
        def wait(content: bytes) -> bytes:
            time.sleep(DECODE_SECONDS)
            return content

        return decode(tf.reshape(tf.numpy_function(wait, [encoded], tf.string), ()), *rest)

    examples.decode_and_resize = decode_slowly
    return tiny(input_shape, classes)


def tiny(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A few hundred weights: launching its operations takes longer than they do."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.AveragePooling2D(7)(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(keras.layers.Flatten()(x)))


def many_weights(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """12 million weights, of which each example needs few operations: 48 MB of gradients for every step."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    for _ in range(3):
        x = keras.layers.Dense(2000, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))
