"""Keras' Model.fit with its defaults, on a pipeline as the published tutorials have it."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.variants.networks import make_network, scale
from benchmarks.variants.turns import Turns
from benchmarks.variants.work import Work, peak_mib

# More than are ever made: blocks of one epoch, which has no end of its own.
STEPS = 10**9


def train_with_fit(work: Work, replicas: int, turns: Turns) -> None:
    """Blocks are timed between the ends of batches."""
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
    blocks: list[Any] = [Blocks(work, turns)]
    model.fit(make_pipeline(work), steps_per_epoch=STEPS, epochs=1, verbose=0, callbacks=blocks)


def make_pipeline(work: Work) -> tf.data.Dataset:
    """Batches for ever, as the tutorials make them: images scaled beforehand, full shuffle."""
    dataset = work.open_dataset()
    images = np.fromfile(dataset.images_file("train"), np.uint8).reshape(-1, *work.image_shape)
    labels = np.asarray(dataset.labels("train"), np.int32)
    if work.model == "convnet":
        slices = tf.data.Dataset.from_tensor_slices((scale(images.astype(np.float32), work), labels))
        return slices.shuffle(work.examples).repeat().batch(work.batch_size)
    slices = tf.data.Dataset.from_tensor_slices((images, labels))
    scaled = slices.map(lambda image, label: (scale(tf.cast(image, tf.float32), work), label))
    return scaled.shuffle(1024).repeat().batch(work.batch_size)


class Blocks(keras.callbacks.Callback):
    """Times blocks of steps for as long as they are wanted, and waits in between."""

    def __init__(self, work: Work, turns: Turns) -> None:
        super().__init__()
        self.work, self.turns = work, turns
        self.step, self.began = -work.steps, 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count; the steps before 0 are the first ones, then those before `began` are the lead-in."""
        self.step += 1
        if self.step == self.work.lead_in:
            self.began = time.perf_counter()
        elif self.step == self.work.lead_in + self.work.steps:
            rate = self.work.steps * self.work.batch_size / (time.perf_counter() - self.began)
            self.turns.tell({"examples_per_second": rate, "peak_mib": peak_mib()})
            self.step = 0
        if self.step == 0 and not self.turns.wanted():
            self.turns.end()
