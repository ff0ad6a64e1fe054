"""Augmentation: what it does to an image, and that it depends on seed, step and place in the batch alone."""

import numpy as np
import pytest
import tensorflow as tf

from rampline.pipeline.augment import augment
from rampline.pipeline.order import EpochOrder

BATCH = 64


def images(height: int = 16, width: int = 24, channels: int = 3) -> np.ndarray:
    """(64, height, width, channels) uint8, no two alike."""
    return np.random.default_rng(5).integers(0, 256, (BATCH, height, width, channels), dtype=np.uint8)


def augmented(kind: str, *, step: int = 0, seed: int = 1, replicas: int = 1, before: np.ndarray | None = None):
    """The images after augmentation, in `replicas` shares put together again."""
    before = images() if before is None else before
    order = EpochOrder(examples=10 * BATCH, global_batch_size=BATCH, seed=seed)
    parts = []
    for replica in range(replicas):
        share = order.share(tf.constant(step), tf.constant(replica), replicas)
        start, count = int(share.offset), len(share.indices)
        own = tf.constant(before[start : start + count])
        parts.append(augment(own, kind=kind, order=order, step=tf.constant(step), share=share).numpy())
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", ["flip", "crop", "flip_crop"])
@pytest.mark.parametrize("shape", [(16, 24, 3), (28, 28, 1), (8, 8, 1)])
def test_shape_and_type_are_kept(kind, shape):
    before = images(*shape)
    after = augmented(kind, before=before)
    assert (after.shape, after.dtype) == (before.shape, np.uint8)
    changed = np.any(after != before, axis=(1, 2, 3))
    assert 0.25 * BATCH < changed.sum() <= BATCH


@pytest.mark.parametrize("kind", ["flip", "crop", "flip_crop"])
@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_the_images_are_the_same_whatever_the_number_of_replicas(kind, replicas):
    np.testing.assert_array_equal(augmented(kind, replicas=replicas), augmented(kind))


@pytest.mark.parametrize("kind", ["flip", "crop"])
def test_the_same_seed_and_step_give_the_same_images(kind):
    first = augmented(kind)
    np.testing.assert_array_equal(augmented(kind), first)
    assert not np.array_equal(augmented(kind, step=1), first)
    assert not np.array_equal(augmented(kind, step=10), first)
    assert not np.array_equal(augmented(kind, seed=2), first)


def test_flip_mirrors_about_half_of_the_images_and_leaves_the_others():
    before, after = images(), augmented("flip")
    mirrored = [np.array_equal(new, old[:, ::-1]) for new, old in zip(after, before, strict=True)]
    same = [np.array_equal(new, old) for new, old in zip(after, before, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 16 <= sum(mirrored) <= 48


def test_crop_is_a_window_of_the_padded_image():
    """16x24 with 1/8 padding: 2 rows and 3 columns on each side, so 5 x 7 windows."""
    before, after = images(), augmented("crop")
    padded = np.pad(before, ((0, 0), (2, 2), (3, 3), (0, 0)), mode="reflect")
    windows = []
    for old, new in zip(padded, after, strict=True):
        places = [(r, c) for r in range(5) for c in range(7) if np.array_equal(old[r : r + 16, c : c + 24], new)]
        assert len(places) == 1
        windows += places
    assert {row for row, _ in windows} == set(range(5))
    assert {column for _, column in windows} == set(range(7))
