"""MultiWorkerMirroredStrategy as TensorFlow's tutorial for custom loops has it: one tf.function call for each step."""

from __future__ import annotations

import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from benchmarks.contenders.networks import make_network, scale
from benchmarks.contenders.work import Work


def make_plain_run(work: Work) -> Callable[[int], float]:
    """A function that makes so many steps and returns examples per second of all workers."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch_size = work.batch_size * strategy.num_replicas_in_sync
    batches = iter(strategy.experimental_distribute_dataset(make_pipeline(work, global_batch_size)))
    with strategy.scope():
        model, optimizer = make_network(work), keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)

    def replica_step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        variables = [variable.value for variable in model.trainable_variables]
        optimizer.apply(tape.gradient(loss, variables), model.trainable_variables)
        return loss

    @tf.function
    def step() -> tf.Tensor:
        per_replica = strategy.run(replica_step, args=next(batches))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    def run(steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            step().numpy()
        return steps * global_batch_size / (time.perf_counter() - started)

    return run


def make_pipeline(work: Work, global_batch_size: int) -> tf.data.Dataset:
    """Batches for ever; uint8 images are cast after batching."""
    dataset = work.open_dataset()
    images = np.fromfile(dataset.images_file("train"), np.uint8).reshape(-1, *work.image_shape)
    labels = np.asarray(dataset.labels("train"), np.int32)
    slices = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(10_000).repeat()
    batches = slices.batch(global_batch_size)
    batches = batches.map(lambda image, label: (scale(tf.cast(image, tf.float32), work), label))
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)
