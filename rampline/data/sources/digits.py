"""`digits`: the 1,797 real handwritten digits that come with scikit-learn, 8x8 grey. No network, no files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from rampline.config import DataConfig
from rampline.data.sources.source import Example, Source, SourceSplit, Tell

TEST_FRACTION = 0.2
TEST_SEED = 0
# The images never change; this does when they are read in another way.
_STAT_FINGERPRINT = "digits-1"


def directory_name(config: DataConfig) -> str:
    """What the prepared directory is named after."""
    return config.source


def stat_fingerprint(config: DataConfig, tfds_directory: Path) -> str:
    """A constant."""
    return _STAT_FINGERPRINT


def open_source(
    config: DataConfig, tfds_directory: Path, *, for_training: bool = True, tell: Tell | None = None
) -> Source:
    """All ten classes; `test` is a fixed stratified fifth, the rest is `train`."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = (np.asarray(values) for values in load_digits(return_X_y=True))
    # The source counts ink in 0..16.
    images = np.round(pixels.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    indices = np.arange(len(labels))
    train, test = train_test_split(indices, test_size=TEST_FRACTION, stratify=labels, random_state=TEST_SEED)
    splits = {
        split: SourceSplit(examples=len(chosen), iterate=partial(_iterate, images, labels, np.sort(chosen)))
        for split, chosen in (("train", train), ("test", test))
    }
    return Source(class_names=tuple("0123456789"), channels=1, splits=splits, stat_fingerprint=_STAT_FINGERPRINT)


def _iterate(images: np.ndarray, labels: np.ndarray, chosen: np.ndarray) -> Iterator[Example]:
    for index in chosen:
        yield Example(name=f"{index:04d}", label=int(labels[index]), read=partial(_encode, images[index]))


def _encode(image: np.ndarray) -> bytes:
    # Imported here because the flow process asks for the fingerprint and must not load TensorFlow.
    import tensorflow as tf

    return tf.io.encode_png(image, compression=0).numpy()
