"""The step of a parameter-server worker trains as the step of a process that has the variables itself."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from rampline.config import OptimizerConfig
from rampline.training import parameter_server as remote_step
from rampline.training.objective import Objective, make_cross_entropy, make_metrics
from rampline.training.optimizers import fuse_update, make_optimizer
from rampline.training.parameter_server import PackedVariables, make_remote_evaluation_step, make_remote_train_step
from rampline.training.random_draws import seed_generators
from rampline.training.state import TrainingState
from rampline.training.step import make_evaluation_step, make_train_step


def make_state(optimizer: str) -> TrainingState:
    """A network with all that a step may change beside the weights, and with a layer that is frozen."""
    keras.utils.set_random_seed(4)
    model = keras.Sequential(
        [
            keras.Input((4, 4, 1), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            # No bias: the normalisation takes it away, so that its gradient is nothing but rounding.
            keras.layers.Conv2D(3, 2, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.1)),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dropout(0.5, seed=1),
            keras.layers.Flatten(),
            keras.layers.Dense(5, trainable=False, name="frozen"),
            keras.layers.Dense(3),
        ]
    )
    made = make_optimizer(OptimizerConfig(name=optimizer), 0.1)
    fuse_update(made)
    made.build(model.trainable_variables)
    step, objective = tf.Variable(0, dtype=tf.int64), Objective(make_cross_entropy(0.1), make_metrics(["top_2"]))
    return TrainingState(model=model, optimizer=made, step=step, learning_rate=lambda step: 0.1, objective=objective)


def make_batch(step: int = 0) -> dict[str, tf.Tensor]:
    """Six examples, of which the last is filling."""
    images = np.random.default_rng(0).integers(0, 255, (6, 4, 4, 1), np.uint8)
    return {
        "images": tf.constant(images),
        "labels": tf.constant([0, 1, 2, 0, 1, 2]),
        "weights": tf.constant([1.0, 1.0, 1.0, 1.0, 1.0, 0.0]),
        "global_examples": tf.constant(5.0),
        "step": tf.constant(step, tf.int64),
    }


@pytest.mark.parametrize(
    "pack_bytes", [pytest.param(2**25, id="one pack", marks=pytest.mark.long), pytest.param(16, id="many packs")]
)
@pytest.mark.parametrize(
    "optimizer, micro_batch", [("adam", None), pytest.param("rmsprop", None, marks=pytest.mark.long), ("sgd", 4)]
)
def test_weights_statistics_and_sums_are_those_of_the_plain_step(optimizer, micro_batch, pack_bytes, monkeypatch):
    monkeypatch.setattr(remote_step, "_PACK_BYTES", pack_bytes)
    plain, remote = make_state(optimizer), make_state(optimizer)
    steps = (
        make_train_step(plain, xla=False, micro_batch=micro_batch),
        make_remote_train_step(remote, micro_batch),
    )
    evaluations = (make_evaluation_step(plain), make_remote_evaluation_step(remote))
    before, (drawn,) = [v.numpy() for v in plain.model.variables], seed_generators(plain.model)
    steps = [tf.function(step) for step in steps]
    for number in range(3):
        # Whichever worker takes a step draws by its number, and leaves the count alone.
        drawn.state.assign([1, 1024 * number])
        plain.step.assign(number)
        batch = make_batch(number)
        sums = [step(batch).numpy() for step in steps]
        np.testing.assert_allclose(*sums, rtol=1e-6)
    drawn.state.assign([1, 0])
    for name, old, one, other in zip(
        [v.path for v in plain.model.variables], before, plain.model.variables, remote.model.variables, strict=True
    ):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-7, err_msg=name)
        assert np.array_equal(old, other.numpy()) == ("frozen" in name or "seed" in name), name
    np.testing.assert_allclose(*[tf.function(step)(make_batch()).numpy() for step in evaluations], rtol=1e-5)


def test_packs_hold_one_dtype_and_no_more_than_they_may(monkeypatch):
    monkeypatch.setattr(remote_step, "_PACK_BYTES", 40)
    values = [np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones(4, np.float32), np.array([7, 8], np.int64)]
    values.append(np.float32(3))
    variables = [keras.Variable(value, dtype=value.dtype.name, trainable=False) for value in values]
    packed = PackedVariables(variables)
    packs = packed.read()
    assert [pack.numpy().tolist() for pack in packs] == [[0, 1, 2, 3, 4, 5, 1, 1, 1, 1], [7, 8], [3]]
    for value, unpacked in zip(values, packed.unpack(packs), strict=True):
        np.testing.assert_array_equal(value, unpacked)
    packed.assign([tf.constant(value + 1) for value in values])
    assert [variable.numpy().tolist() for variable in variables] == [(value + 1).tolist() for value in values]
