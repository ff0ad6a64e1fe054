"""Augmentation: what it does to an image, and that it depends on seed, step and place in the batch alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rampline.config import DataConfig
from rampline.config.keras_names import IMAGE_LAYERS, keras_names, keras_parameters
from rampline.data.compiled import compiled
from rampline.errors import ConfigError
from rampline.pipeline.augment import Augmented, flip, load_augmentations
from rampline.pipeline.examples import Examples
from rampline.pipeline.order import EpochOrder

BATCH, CLASSES = 64, 4
LAYERS = keras_names("layers", IMAGE_LAYERS)


def images(height: int = 16, width: int = 24, channels: int = 3) -> np.ndarray:
    """(64, height, width, channels) uint8, no two alike."""
    return np.random.default_rng(5).integers(0, 256, (BATCH, height, width, channels), dtype=np.uint8)


def augmented_pairs(kinds, *, step: int = 0, seed: int = 1, replicas: int = 1, before: np.ndarray | None = None):
    """Images and labels of a batch of all examples, in their own order, in `replicas` shares put together again."""
    before = images() if before is None else before
    labels = np.arange(len(before), dtype=np.int32) % CLASSES
    examples = Examples(
        storage="tensor", image_shape=before.shape[1:], classes=CLASSES, labels=labels, images=tf.constant(before)
    )
    order = Straight(examples=len(before), global_batch_size=len(before), seed=seed)
    loaded, parts = load_augmentations(DataConfig(augment=kinds).augmentations), []
    for replica in range(replicas):
        share = order.share(tf.constant(step), tf.constant(replica), replicas)
        rows = share.offset + tf.range(len(share.indices), dtype=tf.int64)

        def take(rows: tf.Tensor, step: tf.Tensor):
            return Augmented(examples=examples, order=order, step=step, kinds=loaded).take(rows)

        parts.append([part.numpy() for part in compiled(take)(rows, tf.constant(step, tf.int64))])
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


def augmented(kinds, **how) -> np.ndarray:
    return augmented_pairs(kinds, **how)[0]


class Straight(EpochOrder):
    """Row i of the batch is example i."""

    def examples_at(self, step: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        return rows


@pytest.mark.parametrize("kind", ["flip", "crop", "flip_crop"])
@pytest.mark.parametrize("shape", [(16, 24, 3), (28, 28, 1), (8, 8, 1)])
def test_shape_and_type_are_kept(kind, shape):
    before = images(*shape)
    after = augmented(kind, before=before)
    assert (after.shape, after.dtype) == (before.shape, np.uint8)
    changed = np.any(after != before, axis=(1, 2, 3))
    assert 0.25 * BATCH < changed.sum() <= BATCH


@pytest.mark.parametrize("kind", ["flip", "crop"])
@pytest.mark.parametrize("replicas", [2, 5])
def test_the_images_are_the_same_whatever_the_number_of_replicas(kind, replicas):
    np.testing.assert_array_equal(augmented(kind, replicas=replicas), augmented(kind))


@pytest.mark.parametrize("kind", ["flip", "crop"])
def test_the_same_seed_and_step_give_the_same_images(kind):
    first = augmented(kind)
    np.testing.assert_array_equal(augmented(kind), first)
    assert not np.array_equal(augmented(kind, step=1), first)
    assert not np.array_equal(augmented(kind, step=10), first)
    assert not np.array_equal(augmented(kind, seed=2), first)


def test_a_word_draws_what_it_always_drew():
    draws = tf.random.stateless_uniform((BATCH, 3), [1, 7])
    np.testing.assert_array_equal(augmented("flip", step=7), flip(tf.constant(images()), draws))
    np.testing.assert_array_equal(augmented(["flip"], step=7), augmented("flip", step=7))


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


LISTS = {
    "flip, crop": ["flip", "crop"],
    "layers": [{"RandomRotation": {"factor": 0.1}}, {"RandomBrightness": {"factor": 0.3}}],
    "layer, flip": [{"RandomErasing": {"factor": 1.0}}, "flip"],
    "mixed": ["flip", "MixUp"],
    "mixed twice": [
        {"RandomBrightness": {"factor": 0.3}},
        {"CutMix": {"factor": 0.8}},
        "crop",
        {"MixUp": {"alpha": 0.9}},
    ],
}
LONGER = dict.fromkeys(["layers", "layer, flip", "mixed twice"], pytest.mark.long)


@pytest.mark.parametrize(
    "kinds", [pytest.param(kinds, id=name, marks=LONGER.get(name, ())) for name, kinds in LISTS.items()]
)
@pytest.mark.parametrize("replicas", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_list_gives_the_same_images_and_labels_whatever_the_number_of_replicas(kinds, replicas):
    pixels, labels = augmented_pairs(kinds, step=3, before=images()[:13])
    assert (pixels.shape, pixels.dtype) == ((13, 16, 24, 3), np.uint8)
    own_pixels, own_labels = augmented_pairs(kinds, step=3, before=images()[:13], replicas=replicas)
    np.testing.assert_array_equal(own_pixels, pixels)
    np.testing.assert_array_equal(own_labels, labels)
    assert not np.array_equal(augmented(kinds, step=4, before=images()[:13]), pixels)


@pytest.mark.parametrize(
    "name, options",
    [
        ("RandomRotation", {"factor": 0.2}),
        ("RandomErasing", {"factor": [1.0, 1.0]}),
        pytest.param("RandAugment", {"factor": 0.5}, marks=pytest.mark.long),
    ],
)
def test_an_image_is_what_the_layer_of_keras_makes_of_it_from_the_same_seed(name, options):
    """Every row has the state from which Keras' own generator of the layer draws."""
    before, after = images()[:5], augmented([{name: options}], step=2, before=images()[:5])
    fold = tf.random.fold_in(tf.constant([1, 2], tf.int64), 1)
    states = tf.random.stateless_uniform((5, 2), fold, 0, 2**31 - 2, tf.int64)
    layer = getattr(keras.layers, name)(**options)
    for image, state, found in zip(before, states, after, strict=True):
        layer.generator.state.assign(state)
        expected = layer(image[None].astype(np.float32), training=True)[0]
        np.testing.assert_allclose(found, np.clip(np.round(expected), 0, 255), atol=1)
        assert not np.array_equal(found, image)


def test_mixup_mixes_each_example_with_one_other_of_the_global_batch():
    """Of black images and one white one: the white one is in two, and the labels say how much of it."""
    before = np.zeros((8, 8, 8, 1), np.uint8)
    before[5] = 255
    pixels, labels = augmented_pairs([{"MixUp": {"alpha": 0.9}}], step=5, before=before)
    assert (labels.shape, labels.dtype) == ((8, CLASSES), np.float32)
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
    white = pixels[:, 0, 0, 0] / 255
    # The partner of row 4 is the white one, which is of class 1; row 4 is of class 0.
    assert np.flatnonzero(white).tolist() == [4, 5]
    np.testing.assert_allclose(labels[[4, 5], 1], white[[4, 5]], atol=2e-3)
    assert labels[4, 0] == pytest.approx(1 - white[4], abs=2e-3)
    assert 0.01 < white[4] < 0.99


def test_few_examples_are_mixed_with_themselves():
    """At a step for which `tf.random.experimental.index_shuffle` left 38 of 64 in their places."""
    before = np.where(np.eye(BATCH, dtype=bool), 255, 0).astype(np.uint8).reshape(BATCH, 8, 8, 1)
    pixels, _ = augmented_pairs([{"MixUp": {"alpha": 9.0}}], step=68, before=before)
    assert (pixels.reshape(BATCH, BATCH).diagonal() == 255).sum() <= 5


def test_a_mixed_example_is_a_mixture_of_what_came_before():
    """CutMix after flip: each pixel is the flipped one of the example, or of its partner."""
    flipped = augmented("flip", before=images(8, 8))
    cut, _ = augmented_pairs(["flip", "CutMix"], before=images(8, 8))
    of_another = 0
    for row, image in enumerate(cut):
        same = (image == flipped[row]).all(axis=-1)
        partners = [np.where(same, True, (image == other).all(axis=-1)).all() for other in flipped]
        assert any(partners)
        of_another += not same.all()
    assert of_another > BATCH // 4


def test_the_images_of_the_parity_check_in_float64_are_those_of_the_run():
    expected = augmented([{"RandomRotation": {"factor": 0.1}}, "MixUp"], before=images()[:4])
    keras.config.set_floatx("float64")
    try:
        found = augmented([{"RandomRotation": {"factor": 0.1}}, "MixUp"], before=images()[:4])
        assert keras.config.floatx() == "float64"
    finally:
        keras.config.set_floatx("float32")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "kinds, message",
    [
        (["Rotate"], "data.augment: Rotate cannot be made with {}: "),
        (
            [{"RandomRotation": {"factor": "much"}}],
            "data.augment: RandomRotation cannot be made with {'factor': 'much'",
        ),
        (
            [{"RandomCrop": {"height": 4, "width": 4}}],
            "data.augment: RandomCrop makes images of (4, 4, 3) of (16, 24, 3)",
        ),
    ],
)
def test_what_keras_does_not_make_is_one_line(kinds, message):
    with pytest.raises(ConfigError) as failure:
        augmented(kinds)
    assert str(failure.value).startswith(message)
    assert "\n" not in str(failure.value)


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({*LAYERS} - {"AugMix", "Resizing", "CenterCrop", "MaxNumBoundingBoxes"}))
def test_every_image_layer_of_keras_depends_on_the_position_alone(name):
    """But those that change the size, that for boxes, and AugMix, which draws in Python."""
    given = {"RandomTranslation": {"height_factor": 0.2, "width_factor": 0.2}, "RandomZoom": {"height_factor": 0.2}}
    given |= {"RandomCrop": {"height": 16, "width": 24}, "RandomPosterization": {"factor": 4}}
    parameters = keras_parameters(LAYERS[name], name)
    kinds = [{name: given.get(name, {"factor": 0.3} if "factor" in parameters else {})}]
    first = augmented(kinds, before=images()[:6])
    np.testing.assert_array_equal(augmented(kinds, before=images()[:6], replicas=3), first)
