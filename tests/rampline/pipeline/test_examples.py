"""Examples by index: the same pixels from every storage."""

import numpy as np
import pytest
import tensorflow as tf

from rampline.pipeline.examples import open_examples


@pytest.mark.long
def test_batches_do_not_depend_on_the_cache(digits_by_cache, train_batches, assert_same):
    batches = {
        cache: train_batches(
            12, examples=open_examples(dataset, "train"), cache=cache, augment="flip_crop", count=2, total=2
        )
        for cache, dataset in digits_by_cache.items()
    }
    assert_same(batches["disk"], batches["memory"])
    assert_same(batches["none"], batches["memory"])


def test_examples_come_in_the_order_that_was_asked_for(digits):
    images, labels = open_examples(digits, "train").take(tf.constant([119, 0, 53, 0], tf.int64))
    assert images.shape == (4, 28, 28, 1)
    assert (images.dtype, labels.dtype) == (tf.uint8, tf.int32)
    assert labels.numpy().tolist() == digits.labels("train")[[119, 0, 53, 0]].tolist()
    np.testing.assert_array_equal(images[1], images[3])
    assert not np.array_equal(images[0], images[2])


def test_images_stay_in_host_memory_whatever_device_comes_first(digits):
    with tf.device("CPU:1"):
        examples = open_examples(digits, "train")
    assert examples.images.device.endswith("CPU:0")
