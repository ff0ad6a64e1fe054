"""Fused optimizers against Keras' own; and a sign that tells when the workaround for Keras' counter can go."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rampline.config import OptimizerConfig
from rampline.training.optimizers import (
    LossScaleOptimizer,
    averages_of,
    clip_the_sum,
    fuse_update,
    make_iterations_atomic,
    make_optimizer,
    make_swap,
)

OWN = {
    "adam": lambda: keras.optimizers.Adam(0.1, weight_decay=0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.01),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.8, weight_decay=0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.8, weight_decay=0.01),
}


def operations(function, *arguments) -> list[str]:
    """Types of the operations in the graph of a traced function."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    return [operation.type for operation in graph.get_operations()]


def test_keras_still_counts_with_a_read_and_a_write():
    counter = keras.Variable(0, dtype="int64", trainable=False)

    def count():
        counter.assign_add(1)

    found = operations(count)
    assert "AssignVariableOp" in found or "AssignAddVariableOp" in found
    in_place = "KerasVariable.assign_add adds in place now"
    advice = f"{in_place}: the workaround make_iterations_atomic in rampline/training/optimizers.py can be removed"
    assert "AssignAddVariableOp" not in found, advice


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss scale"])
def test_the_workaround_counts_in_place(scaled):
    variable = keras.Variable([1.0, 2.0])
    optimizer = inner = keras.optimizers.SGD(0.5)
    if scaled:
        optimizer = LossScaleOptimizer(inner)
    optimizer.build([variable])
    make_iterations_atomic(optimizer)

    def count():
        inner.iterations.assign_add(1)

    assert operations(count).count("AssignAddVariableOp") == 1
    tf.function(count)()
    assert int(inner.iterations) == 1


def train(optimizer: keras.optimizers.Optimizer, gradients: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The variable after an update with each of the gradients, and the optimizer's own."""
    variable = keras.Variable(np.linspace(-1, 1, 12).reshape(3, 4), dtype="float64")
    optimizer.build([variable])

    @tf.function
    def update(gradient):
        optimizer.apply([gradient], [variable])

    for gradient in gradients:
        update(tf.constant(gradient))
    return variable.numpy(), [np.asarray(v.value) for v in optimizer.variables]


@pytest.mark.parametrize("name", sorted(OWN))
def test_updates_are_those_of_keras(name):
    draw = np.random.default_rng(0)
    gradients = [draw.normal(scale=10.0 ** -(i % 4), size=(3, 4)) for i in range(20)]
    ours = make_optimizer(OptimizerConfig(name=name, momentum=0.8, weight_decay=0.01), 0.1)
    fuse_update(ours)
    weights, variables = train(ours, gradients)
    expected, expected_variables = train(OWN[name](), gradients)
    assert isinstance(ours, type(OWN[name]()))
    # Keras rounds its settings to float32: Adam's bias correction is off by 7e-6 of each of 20 updates of 0.1.
    np.testing.assert_allclose(weights, expected, atol=20 * 0.1 * 7e-6)
    for variable, other in zip(variables, expected_variables, strict=True):
        np.testing.assert_allclose(variable, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "name, kernel",
    [("adam", "ResourceApplyAdam"), ("adamw", "ResourceApplyAdam"), ("sgd", "ResourceApplyKerasMomentum")],
)
def test_an_update_is_one_operation_per_variable(name, kernel):
    optimizer = make_optimizer(OptimizerConfig(name=name), 0.1)
    fuse_update(optimizer)
    variables = [keras.Variable(np.ones(3)), keras.Variable(np.ones(4))]
    optimizer.build(variables)

    def update():
        optimizer.apply([tf.ones(3), tf.ones(4)], variables)

    assert operations(update).count(kernel) == 2


def train_mirrored(optimizer: keras.optimizers.Optimizer, gradients: list[float]) -> list[float]:
    """A weight that begins at 0 after a step in which each replica has one of these gradients."""
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(len(gradients))])
    with strategy.scope():
        variable = keras.Variable([0.0, 0.0])
        optimizer._distribution_strategy = strategy
        clip_the_sum(optimizer)
        optimizer.build([variable])
    own = tf.constant(gradients)

    @tf.function
    def update():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        optimizer.apply([tf.stack([own[replica], 0.0])], [variable])

    strategy.run(update)
    return variable.numpy().tolist()


def test_the_sum_of_the_replicas_gradients_is_clipped_and_not_each_of_them():
    # 3 - 2 + 0.5 is 1.5, and 1 is allowed; clipped one by one it would be 1 - 1 + 0.5.
    assert train_mirrored(keras.optimizers.SGD(1.0, clipnorm=1.0), [3.0, -2.0, 0.5]) == [-1.0, 0.0]


@pytest.mark.parametrize("scale", [0.0, 0.01, 100.0])
def test_a_gradient_is_clipped_as_by_keras(scale):
    gradient = tf.constant(np.random.default_rng(0).normal(scale=scale, size=(3, 4)), tf.float32)
    optimizer = keras.optimizers.SGD(0.1, clipnorm=1.5)
    (expected,) = optimizer._clip_gradients([gradient])
    clip_the_sum(optimizer)
    (clipped,) = optimizer._clip_gradients([gradient])
    np.testing.assert_allclose(clipped.numpy(), expected.numpy(), rtol=1e-6)
    assert np.linalg.norm(clipped) <= 1.5 * (1 + 1e-6)


def test_an_average_is_exchanged_with_its_weight_bit_by_bit():
    variable = keras.Variable([0.1, 0.7])
    optimizer = make_optimizer(OptimizerConfig(name="sgd", momentum=0.0, ema=0.75), 1.0)
    optimizer.build([variable])
    for _ in range(2):
        optimizer.apply([tf.constant([0.3, -0.2])], [variable])
    gradient = np.array([0.3, -0.2], np.float32)
    weight = np.array([0.1, 0.7], np.float32) - gradient
    ((_, average),) = averages_of(optimizer)
    # The first step begins the average, the second moves it by a quarter.
    expected = 0.75 * weight + 0.25 * (weight - gradient)
    np.testing.assert_allclose(average.numpy(), expected, rtol=1e-6)
    before = [variable.numpy().tobytes(), average.numpy().tobytes()]
    swap = make_swap(optimizer, tf.distribute.get_strategy())
    swap()
    assert [average.numpy().tobytes(), variable.numpy().tobytes()] == before
    swap()
    assert [variable.numpy().tobytes(), average.numpy().tobytes()] == before


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_a_sparse_gradient_updates_its_rows_as_in_keras(name):
    def row_after(optimizer: keras.optimizers.Optimizer) -> np.ndarray:
        variable = keras.Variable(np.ones((3, 2)))
        optimizer.build([variable])
        rows = tf.IndexedSlices(tf.fill((1, 2), 2.0), tf.constant([1]), dense_shape=tf.constant([3, 2]))
        tf.function(lambda: optimizer.apply([rows], [variable]))()
        return variable.numpy()

    own = {"adam": keras.optimizers.Adam(0.1), "sgd": keras.optimizers.SGD(0.1, momentum=0.9)}[name]
    ours = make_optimizer(OptimizerConfig(name=name), 0.1)
    fuse_update(ours)
    np.testing.assert_allclose(row_after(ours), row_after(own), rtol=1e-6)


def test_a_worker_uses_the_scale_of_its_loss_where_another_has_changed_it_since():
    variable = keras.Variable([1.0])
    optimizer = LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=4.0, dynamic_growth_steps=2)
    optimizer.build([variable])
    make_iterations_atomic(optimizer)
    update = tf.function(lambda gradient, scale: optimizer.apply([gradient[None]], [variable], scale=scale))

    def after(gradient: float, scale: float) -> tuple[float, float]:
        update(tf.constant(gradient), tf.constant(scale))
        return float(variable.value[0]), float(optimizer.dynamic_scale.value)

    assert float(optimizer.scale_loss(tf.constant(3.0), scale=tf.constant(8.0))) == 24.0
    assert after(8.0, 8.0) == (0.5, 4.0)
    # Two workers find 8 too large: the scale is halved once.
    assert after(np.inf, 8.0) == (0.5, 4.0)
    assert after(np.nan, 4.0) == (0.5, 2.0)
    # Two count at once: the count is beyond the steps it is doubled after.
    optimizer.step_counter.assign(5)
    assert after(2.0, 2.0) == (0.0, 4.0)
    assert int(optimizer.step_counter.value) == 0
    assert int(optimizer.iterations) == 2
