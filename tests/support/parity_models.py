"""Networks for the parity check, imported by role processes as `parity_models:NAME`."""

import os
import resource
import signal
import sys
from pathlib import Path

import keras
import psutil
import tensorflow as tf

from rampline.files import read_json


def with_random_parts(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """BatchNormalization and Dropout inside a nested model, and a random augmentation layer."""
    inner = keras.Sequential(
        [
            keras.layers.Conv2D(4, 3, strides=2),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.5),
        ]
    )
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.RandomFlip("horizontal")(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.GlobalAveragePooling2D()(inner(x))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


def penalised(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A smooth network with penalties on its weights, and on what a layer gives out."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.Dense(32, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-2))(x)
    x = keras.layers.ActivityRegularization(l2=1e-2)(x)
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


@keras.saving.register_keras_serializable()
class OtherExamples(keras.layers.Layer):
    """Gives every replica but the first images that do not belong to its labels."""

    def call(self, images):
        context = tf.distribute.get_replica_context()
        if context is None:
            return images
        return tf.roll(images, tf.cast(context.replica_id_in_sync_group > 0, tf.int32), axis=0)


def with_other_examples(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A network whose second replica sees other examples."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(OtherExamples()(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


def in_little_memory(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """58 MB, two times and more, for each example in float64, and 2000 MiB for all: enough for 7, and not for 28."""
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        allowed = psutil.Process().memory_info().vms + 2000 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (allowed, allowed))
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.UpSampling2D(96)(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Rescaling(0.5)(x))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


def killed_above_a_batch_of_16(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """What the kernel does to a process when memory runs out."""
    job = read_json(Path(sys.argv[1]) / "job.json")
    if job["arguments"]["config"]["batch"]["size"] > 16:
        os.kill(os.getpid(), signal.SIGKILL)
    return with_random_parts(input_shape, classes)
