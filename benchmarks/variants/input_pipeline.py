"""Batches of 28x28 images from memory, and nothing done with them: `python -m ….input_pipeline KIND --batch N`.

    product  the product's training pipeline: full shuffle in a fixed order
    naive    from_tensor_slices, shuffle(N), map(cast / 255) with AUTOTUNE, batch, prefetch

Prints examples per second and CPU seconds per 1,000 batches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import numpy as np
import tensorflow as tf

from benchmarks.variants.work import is_quick
from rampline.config import DataConfig
from rampline.pipeline.batches import ReplicaRange, make_train_dataset
from rampline.pipeline.examples import Examples
from rampline.pipeline.order import EpochOrder

EXAMPLES, BLOCKS = 60_000, 3


def make_product(pixels: np.ndarray, labels: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """As the engines make it."""
    examples = Examples(
        storage="tensor",
        image_shape=(28, 28, 1),
        classes=10,
        labels=tf.constant(labels),
        images=tf.constant(pixels),
    )
    order = EpochOrder(examples=EXAMPLES, global_batch_size=batch_size, seed=0)
    return make_train_dataset(examples, order=order, data=DataConfig(), replicas=ReplicaRange(), first_step=0)


def make_naive(pixels: np.ndarray, labels: np.ndarray, batch_size: int) -> tf.data.Dataset:
    """As a user writes it."""
    shuffled = tf.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(EXAMPLES)
    scaled = shuffled.map(
        lambda image, label: (tf.cast(image, tf.float32) / 255.0, label), num_parallel_calls=tf.data.AUTOTUNE
    )
    return scaled.batch(batch_size).prefetch(tf.data.AUTOTUNE).repeat()


@tf.function(reduce_retracing=True)
def fetch(batches, steps: tf.Tensor) -> tf.Tensor:
    """Take so many batches."""
    fetched = tf.constant(0)
    for _ in tf.range(steps):
        batch = next(batches)
        with tf.control_dependencies(tf.nest.flatten(batch)):
            fetched += 1
    return fetched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("product", "naive"))
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (EXAMPLES, 28, 28, 1), dtype=np.uint8)
    labels = random.integers(0, 10, EXAMPLES).astype(np.int32)
    make = make_product if options.kind == "product" else make_naive
    dataset = make(pixels, labels, options.batch)
    batches, steps = iter(dataset), tf.constant(EXAMPLES // options.batch)
    fetch(batches, steps)
    rates, cpu_before, blocks = [], time.process_time(), 2 if is_quick() else BLOCKS
    for _ in range(blocks):
        started = time.perf_counter()
        fetch(batches, steps).numpy()
        rates.append(int(steps) * options.batch / (time.perf_counter() - started))
    cpu = (time.process_time() - cpu_before) / (blocks * int(steps)) * 1000
    print(json.dumps({"examples_per_second": statistics.median(rates), "cpu_seconds_per_1000_batches": cpu}))


if __name__ == "__main__":
    main()
