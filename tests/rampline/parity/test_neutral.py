"""Layers that differ between replicas run as in evaluation, wherever they are in a model."""

import keras
import numpy as np
import parity_models
import pytest
import tensorflow as tf

from rampline.config import ModelConfig
from rampline.parity.check import Neutralised
from rampline.parity.check_process import neutralise, random_layers
from rampline.training.models import make_model

# NumPy 2 complains about how Keras reads its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")


def images(shape: tuple[int, int, int], count: int = 8) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8))


def neutralised(model: keras.Model, batch: tf.Tensor) -> tuple[Neutralised, ...]:
    return neutralise(model, batch, tf.distribute.OneDeviceStrategy("/cpu:0"))


def statistics(model: keras.Model) -> list[np.ndarray]:
    return [np.asarray(v.value) for v in model.variables if "moving_" in v.path]


def test_nested_random_and_normalising_layers_are_neutralised() -> None:
    keras.utils.set_random_seed(0)
    model, batch = parity_models.with_random_parts((16, 16, 1), 3), images((16, 16, 1))
    assert not np.array_equal(model(batch, training=True), model(batch, training=True))
    found = {entry.layer: entry.count for entry in neutralised(model, batch)}
    assert found == {"BatchNormalization": 1, "Dropout": 1, "RandomFlip": 1}
    before = statistics(model)
    assert not np.allclose(before[0], 0), "the statistics are those of the images"
    with tf.GradientTape() as tape:
        trained = model(batch, training=True)
        loss = tf.reduce_sum(trained**2)
    np.testing.assert_array_equal(trained, model(batch, training=False))
    assert all(np.array_equal(a, b) for a, b in zip(before, statistics(model), strict=True))
    gamma = next(v for v in model.trainable_variables if v.path.endswith("gamma"))
    assert np.abs(tape.gradient(loss, gamma.value)).max() > 0


def test_the_statistics_are_those_of_the_images() -> None:
    inputs = keras.Input((4, 4, 2), dtype="uint8")
    normalise = keras.layers.BatchNormalization()
    outputs = keras.layers.Flatten()(normalise(keras.layers.Rescaling(1 / 255)(inputs)))
    model, batch = keras.Model(inputs, outputs), images((4, 4, 2))
    neutralised(model, batch)
    pixels = batch.numpy() / 255
    np.testing.assert_allclose(normalise.moving_mean.value, pixels.mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(normalise.moving_variance.value, pixels.var(axis=(0, 1, 2)), rtol=1e-4)
    assert normalise.momentum == 0.99


@pytest.mark.long
@pytest.mark.parametrize(
    "name, expected",
    [
        ("MobileNetV2", {"BatchNormalization": 52, "Dropout": 1}),
        # Its blocks drop whole examples: Dropout with a noise shape.
        ("EfficientNetB0", {"BatchNormalization": 49, "Dropout": 10}),
    ],
)
def test_a_backbone_becomes_deterministic(name: str, expected: dict[str, int]) -> None:
    keras.utils.set_random_seed(0)
    model = make_model(ModelConfig(name=name), image_shape=(32, 32, 3), classes=3)
    batch = images((32, 32, 3))
    assert {entry.layer: entry.count for entry in neutralised(model, batch)} == expected
    first, second = (np.asarray(model(batch, training=True)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.std() > 1e-3, "the signal goes through the fresh network"


def test_a_frozen_backbone_is_left_alone() -> None:
    config = ModelConfig(name="MobileNetV2", trainable="head")
    model = make_model(config, image_shape=(32, 32, 3), classes=3)
    before = statistics(model)
    assert [(n.layer, n.count) for n in neutralised(model, images((32, 32, 3)))] == [("Dropout", 1)]
    assert all(np.array_equal(a, b) for a, b in zip(before, statistics(model), strict=True))


def test_a_layer_that_is_always_random_is_found() -> None:
    class Noise(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__(name="noise")
            self.generator = keras.random.SeedGenerator(0)

        def call(self, x):
            return x + keras.random.normal(tf.shape(x), seed=self.generator)

    inputs = keras.Input((4,))
    model = keras.Model(inputs, Noise()(inputs))
    assert neutralised(model, tf.zeros((2, 4))) == ()
    assert [layer.name for layer in random_layers(model)] == ["noise"]
