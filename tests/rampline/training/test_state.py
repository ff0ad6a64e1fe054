"""What a training changes; and a sign that tells when the workaround for Keras' counter can go."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rampline.config import LearningRateConfig, OptimizerConfig, RunConfig
from rampline.training.state import make_iterations_atomic, make_optimizer, make_state


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
    advice = f"{in_place}: the workaround make_iterations_atomic in rampline/training/state.py can be removed"
    assert "AssignAddVariableOp" not in found, advice


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss scale"])
def test_the_workaround_counts_in_place(scaled):
    variable = keras.Variable([1.0, 2.0])
    optimizer = inner = keras.optimizers.SGD(0.5)
    if scaled:
        optimizer = keras.mixed_precision.LossScaleOptimizer(inner)
    optimizer.build([variable])
    make_iterations_atomic(optimizer)

    def count():
        inner.iterations.assign_add(1)

    assert operations(count).count("AssignAddVariableOp") == 1
    tf.function(count)()
    assert int(inner.iterations) == 1


def test_an_optimizer_with_the_workaround_updates_as_before():
    variable = keras.Variable([1.0, 2.0])
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build([variable])
    make_iterations_atomic(optimizer)

    @tf.function
    def update():
        optimizer.apply([tf.constant([2.0, 4.0])], [variable])

    update()
    update()
    assert variable.numpy().tolist() == [-1.0, -2.0]
    assert int(optimizer.iterations) == 2


@pytest.fixture(scope="module")
def strategy() -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("/cpu:0")


def weights(state) -> list[np.ndarray]:
    return [np.asarray(v.value) for v in state.model.variables]


def test_the_seed_decides_the_first_weights(digits, strategy):
    first, again, other = (weights(make_state(RunConfig(seed=seed), digits, strategy)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert sum(array.size for array in first) == 121_930


def test_every_strategy_starts_from_the_same_weights(digits, strategy):
    mirrored = tf.distribute.MirroredStrategy(["/cpu:0"])
    one, other = (weights(make_state(RunConfig(seed=1), digits, s)) for s in (strategy, mirrored))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_rate_follows_the_step_in_the_loop_and_the_iterations_in_fit(digits, strategy):
    rate = LearningRateConfig(schedule="ramp", start=0.0, peak=0.01, ramp_epochs=1)
    loop = make_state(RunConfig(learning_rate=rate), digits, strategy)
    fit = make_state(RunConfig(learning_rate=rate, engine="fit"), digits, strategy)
    for state in (loop, fit):
        state.step.assign(1)
    # 120 examples in batches of 64: two steps an epoch.
    assert float(loop.optimizer.learning_rate) == pytest.approx(0.005)
    assert float(fit.optimizer.learning_rate) == 0.0
    fit.optimizer.iterations.assign(1)
    assert float(fit.optimizer.learning_rate) == pytest.approx(0.005)


def test_mixed_precision_with_float16_scales_the_loss(digits, strategy):
    state = make_state(RunConfig(precision="mixed_float16"), digits, strategy)
    assert isinstance(state.optimizer, keras.mixed_precision.LossScaleOptimizer)
    assert state.learning_rate.step is state.step


@pytest.mark.parametrize("name, kind", [("adam", "Adam"), ("adamw", "AdamW"), ("sgd", "SGD"), ("rmsprop", "RMSprop")])
def test_an_optimizer_has_its_settings(name, kind):
    optimizer = make_optimizer(OptimizerConfig(name=name, momentum=0.8, weight_decay=0.01), 0.1)
    assert type(optimizer).__name__ == kind
    assert optimizer.weight_decay == 0.01
    assert getattr(optimizer, "momentum", 0.8) == 0.8
