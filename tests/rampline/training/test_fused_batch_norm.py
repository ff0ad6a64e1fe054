"""BatchNormalization in training by the fused operation: what Keras computes, and only where it can."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from runs import make_config

from rampline.training.batch_norm import fuse_batch_norm
from rampline.training.state import make_state
from rampline.training.step import make_train_step

SHAPE = (8, 3, 2, 3)


def make_images(mean: float = 0.5, n: int = SHAPE[0]) -> np.ndarray:
    return np.random.default_rng(7).normal(mean, [0.5, 2.0, 1.0], (n, *SHAPE[1:])).astype(np.float32)


def make_layer(dtype: str = "float32", **options) -> tuple[keras.Model, keras.layers.BatchNormalization]:
    layer = keras.layers.BatchNormalization(dtype=dtype, **options)
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    random = np.random.default_rng(8)
    for weight in layer.weights:
        weight.assign(random.uniform(0.5, 1.5, weight.shape))
    return model, layer


def train(model: keras.Model, images: np.ndarray, *, xla: bool = False, **call) -> dict[str, np.ndarray]:
    """What one training call computes, and leaves in the variables."""
    weights = [variable.value for variable in model.trainable_variables]

    @tf.function(jit_compile=xla)
    def step(values: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            outputs = model.layers[-1](values, training=True, **call)
            loss = tf.reduce_sum(tf.cast(outputs, values.dtype) * tf.cast(images[::-1], values.dtype))
        return outputs, tape.gradient(loss, [values, *weights])

    outputs, gradients = step(tf.constant(images))
    assert outputs.dtype == model.layers[-1].compute_dtype
    results = {"outputs": outputs, "moving": [v.value for v in model.non_trainable_variables], "gradients": gradients}
    leaves = {f"{key} {i}": v for key, part in results.items() for i, v in enumerate(tf.nest.flatten(part))}
    return {key: np.asarray(tf.cast(value, tf.float64)) for key, value in leaves.items()}


def operations(model: keras.Model, *, training: bool = True) -> set[str]:
    """The kinds of operations in the graph of a call."""
    images = tf.zeros((2, *model.input_shape[1:]))
    graph = tf.function(lambda: model(images, training=training)).get_concrete_function().graph
    return {operation.type for operation in graph.get_operations()}


def is_fused(model: keras.Model, **call) -> bool:
    return "FusedBatchNormV3" in operations(model, **call)


@pytest.mark.parametrize(
    "options, xla",
    [
        ({}, False),
        ({}, True),
        ({"scale": False}, False),
        ({"center": False}, False),
        ({"axis": 3, "momentum": 0.5}, False),
    ],
)
def test_outputs_gradients_and_statistics_are_those_of_keras(options, xla):
    (exact, _), (model, layer) = make_layer("float64", **options), make_layer(**options)
    layer.set_weights(exact.get_weights())
    assert fuse_batch_norm(model) == 1
    assert is_fused(model)
    layer.set_weights(exact.get_weights())
    # Few values, so that a variance divided by n - 1 would show.
    expected, found = train(exact, make_images(n=2).astype(np.float64)), train(model, make_images(n=2), xla=xla)
    assert len(expected) >= 5
    assert expected.keys() == found.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.parametrize(("policy", "digits"), [("mixed_float16", 2e-3), ("mixed_bfloat16", 2e-2)])
def test_in_half_precision_it_is_as_exact_as_keras(policy, digits):
    (plain, _), (model, layer) = make_layer(policy), make_layer(policy)
    fuse_batch_norm(model)
    assert is_fused(model)
    layer.set_weights(plain.get_weights())
    expected, found = train(plain, make_images()), train(model, make_images())
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=digits, atol=digits * np.abs(value).max(), err_msg=key)
    moving = [key for key in expected if "moving" in key]
    for key in moving:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-4, err_msg=key)


def test_the_variance_of_values_far_from_zero_is_exact():
    images = make_images(mean=1000.0)
    model, layer = make_layer(momentum=0.0)
    fuse_batch_norm(model)
    train(model, images)
    np.testing.assert_allclose(layer.moving_variance, images.astype(np.float64).var(axis=(0, 1, 2)), rtol=1e-5)


def test_one_value_for_each_channel_has_no_variance():
    model, layer = make_layer(momentum=0.0)
    fuse_batch_norm(model)
    image = np.array([[[[1.0, 2.0, 3.0]]]], np.float32)
    layer(tf.constant(image), training=True)
    np.testing.assert_array_equal(layer.moving_mean.numpy(), image[0, 0, 0])
    np.testing.assert_array_equal(layer.moving_variance.numpy(), np.zeros(3))


def test_evaluation_and_frozen_layers_stay_with_keras():
    model, layer = make_layer()
    fuse_batch_norm(model)
    assert is_fused(model)
    assert not is_fused(model, training=False)
    layer.trainable = False
    assert not is_fused(model)


@pytest.mark.parametrize(
    "options", [{"renorm": True}, {"synchronized": True}, {"axis": 1}, {"epsilon": 1e-6}, {"dtype": "float64"}], ids=str
)
def test_what_the_operation_cannot_do_stays_with_keras(options):
    layer = keras.layers.BatchNormalization(**options)
    model = keras.Sequential([keras.Input(SHAPE[1:]), layer])
    fuse_batch_norm(model)
    assert not is_fused(model)


def test_vectors_and_masked_images_stay_with_keras():
    vectors = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization()])
    fuse_batch_norm(vectors)
    assert not is_fused(vectors)
    (plain, _), (model, layer) = make_layer(), make_layer()
    fuse_batch_norm(model)
    mask = np.random.default_rng(9).random(SHAPE[:3]) < 0.5
    layer.set_weights(plain.get_weights())
    expected, found = train(plain, make_images(), mask=mask), train(model, make_images(), mask=mask)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


def test_a_call_of_the_users_own_is_kept():
    class Doubled(keras.layers.BatchNormalization):
        def call(self, inputs, training=None, mask=None):
            return 2 * super().call(inputs, training=training, mask=mask)

    model = keras.Sequential([keras.Input(SHAPE[1:]), Doubled()])
    assert fuse_batch_norm(model) == 0
    assert not is_fused(model)


def test_nested_and_shared_layers_are_found_once():
    shared = keras.layers.BatchNormalization()
    inner = keras.Sequential([keras.Input(SHAPE[1:]), shared, keras.layers.BatchNormalization()])
    inputs = keras.Input(SHAPE[1:])
    model = keras.Model(inputs, shared(inner(inputs)))
    assert fuse_batch_norm(model) == 2


def test_the_model_is_saved_as_keras_own(tmp_path):
    model, _ = make_layer()
    before = model.get_config()
    fuse_batch_norm(model)
    assert model.get_config() == before
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not is_fused(loaded)
    np.testing.assert_array_equal(loaded(make_images()), model(make_images()))


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.long)], ids=["no xla", "xla"])
def test_the_loop_fuses_and_its_steps_are_those_of_model_fit(digits, xla):
    config = make_config("single", model="small_models:with_batch_norm", batch=16)
    batch = {
        "images": tf.constant(np.random.default_rng(3).integers(0, 256, (16, *digits.image_shape)), tf.uint8),
        "labels": tf.constant(np.arange(16) % len(digits.class_names), tf.int32),
        "weights": tf.ones((16,)),
        "global_examples": tf.constant(16.0),
    }
    results = []
    for engine in ("fit", "loop"):
        state = make_state(dataclasses.replace(config, engine=engine), digits, tf.distribute.get_strategy())
        assert is_fused(state.model) == (engine == "loop")
        step = tf.function(make_train_step(state, xla=xla and engine == "loop"))
        sums = [step(batch).numpy()[0] for _ in range(5)]
        results.append((sums, [v.numpy() for v in state.model.variables]))
    (fit_sums, fit_variables), (loop_sums, loop_variables) = results
    np.testing.assert_allclose(loop_sums, fit_sums, rtol=1e-4)
    assert fit_sums[-1] < fit_sums[0]
    for ours, theirs in zip(loop_variables, fit_variables, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


def test_keras_does_not_fuse_by_itself():
    """When this fails, Keras does, and `fuse_batch_norm` can go."""
    model, _ = make_layer()
    assert not any("FusedBatchNorm" in kind for kind in operations(model))
