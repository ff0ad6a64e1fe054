from collections import Counter
from pathlib import Path

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

from rampline.config import DataConfig
from rampline.data.sources import digits


def test_splits_are_fixed_and_stratified():
    source = digits.open_source(DataConfig(), Path())
    assert {split: examples.examples for split, examples in source.splits.items()} == {"train": 1437, "test": 360}
    labels = Counter(example.label for example in source.splits["test"].iterate())
    assert sorted(labels.values()) == [35, 35, 36, 36, 36, 36, 36, 36, 37, 37]
    names = [example.name for split in source.splits.values() for example in split.iterate()]
    assert len(set(names)) == 1797


def test_pixels_are_scaled_to_the_whole_range():
    example = next(iter(digits.open_source(DataConfig(), Path()).splits["train"].iterate()))
    pixels = tf.io.decode_png(example.read()).numpy()
    original = np.asarray(load_digits(return_X_y=True)[0]).reshape(-1, 8, 8)[int(example.name)]
    np.testing.assert_array_equal(pixels[..., 0], np.round(original * 255 / 16))
