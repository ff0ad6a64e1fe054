"""Keras' Model.fit with its defaults, on a pipeline as the seeds' recipes have it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.contenders.networks import make_network, scale
from benchmarks.contenders.work import Work, rate_figures


def measure_fit(work: Work, replicas: int) -> dict[str, Any]:
    """Examples per second between the ends of batches, after as many steps as one block has."""
    options: dict[str, Any] = {}
    scope: Any = nullcontext()
    if replicas > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
        devices = [f"CPU:{index}" for index in range(replicas)]
        # The default reduction needs GPUs.
        reduction = tf.distribute.ReductionToOneDevice()
        scope = tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction).scope()
        # Keras 3 fails to compile a replicated step with XLA, and says so.
        options["jit_compile"] = False
    with scope:
        model = make_network(work)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], **options)
    stamps = Stamps()
    steps = work.steps * (work.timed_blocks + 1) + 1
    model.fit(make_pipeline(work), steps_per_epoch=steps, epochs=1, verbose=0, callbacks=[stamps])  # type: ignore[arg-type]
    marks = stamps.seconds[work.steps :: work.steps]
    return rate_figures([work.steps * work.batch_size / (b - a) for a, b in pairwise(marks)])


def make_pipeline(work: Work) -> tf.data.Dataset:
    """Batches for ever: seed D for the convnet (images scaled beforehand, full shuffle), seed A for MobileNetV2."""
    dataset = work.open_dataset()
    images = np.fromfile(dataset.images_file("train"), np.uint8).reshape(-1, *work.image_shape)
    labels = np.asarray(dataset.labels("train"), np.int32)
    if work.model == "convnet":
        slices = tf.data.Dataset.from_tensor_slices((scale(images.astype(np.float32), work), labels))
        return slices.shuffle(work.examples).repeat().batch(work.batch_size)
    slices = tf.data.Dataset.from_tensor_slices((images, labels))
    scaled = slices.map(lambda image, label: (scale(tf.cast(image, tf.float32), work), label))
    return scaled.shuffle(1024).repeat().batch(work.batch_size)


class Stamps(keras.callbacks.Callback):
    """When each batch ended, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the time."""
        self.seconds.append(time.perf_counter())
