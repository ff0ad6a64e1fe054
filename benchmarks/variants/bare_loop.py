"""The fastest loop that a competent engineer writes by hand for one device, and nothing around it."""

from __future__ import annotations

import time

import keras
import numpy as np
import tensorflow as tf

from benchmarks.variants.networks import make_network, scale
from benchmarks.variants.turns import Turns
from benchmarks.variants.work import Work, time_block

CALL_SECONDS = 1.0


def train_bare(work: Work, turns: Turns) -> None:
    """In calls of about a second."""
    loop = BareLoop(work)
    loop.run(2)
    per_step = min(loop.seconds(4) for _ in range(2)) / 4
    per_call = max(1, min(work.steps, round(CALL_SECONDS / per_step)))

    def run(steps: int) -> float:
        started = time.perf_counter()
        for first in range(0, steps, per_call):
            loop.run(min(per_call, steps - first))
        return steps * work.batch_size / (time.perf_counter() - started)

    run(work.steps)
    for _ in turns:
        turns.tell(time_block(run, work))


class BareLoop:
    """uint8 images on the device, a random permutation of them in each epoch, Adam, many steps in one call."""

    def __init__(self, work: Work) -> None:
        dataset = work.open_dataset()
        images = np.memmap(dataset.images_file("train"), np.uint8, mode="r").reshape(-1, *work.image_shape)
        self.images = tf.constant(images)
        self.labels = tf.constant(np.asarray(dataset.labels("train"), np.int32))
        self.work, self.steps_per_epoch = work, work.examples // work.batch_size
        self.model, self.optimizer = make_network(work), keras.optimizers.Adam()
        self.optimizer.build(self.model.trainable_variables)
        self.order = tf.Variable(self.permutation())
        self.at = 0

    def permutation(self) -> tf.Tensor:
        """(steps, batch) int32: the epoch's batches of indices."""
        used = self.steps_per_epoch * self.work.batch_size
        order = tf.random.shuffle(tf.range(self.work.examples, dtype=tf.int32))[:used]
        return tf.reshape(order, (self.steps_per_epoch, self.work.batch_size))

    def run(self, steps: int) -> None:
        """Make so many steps; a new epoch begins between two calls."""
        while steps:
            count = min(steps, self.steps_per_epoch - self.at)
            self.call(tf.constant(self.at), tf.constant(count)).numpy()
            self.at, steps = self.at + count, steps - count
            if self.at == self.steps_per_epoch:
                self.order.assign(self.permutation())
                self.at = 0

    def seconds(self, steps: int) -> float:
        """Time of so many steps."""
        started = time.perf_counter()
        self.run(steps)
        return time.perf_counter() - started

    @tf.function
    def call(self, first: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """The sum of the losses of `count` steps."""
        total = tf.zeros(())
        variables = [variable.value for variable in self.model.trainable_variables]
        for step in tf.range(first, first + count):
            indices = self.order[step]
            images = scale(tf.cast(tf.gather(self.images, indices), tf.float32), self.work)
            labels = tf.gather(self.labels, indices)
            with tf.GradientTape() as tape:
                logits = self.model(images, training=True)
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
            self.optimizer.apply(tape.gradient(loss, variables), self.model.trainable_variables)
            total += loss
        return total
