"""What a training changes, under every strategy."""

import compiled_models
import keras
import numpy as np
import pytest
import tensorflow as tf

from rampline.config import LearningRateConfig, ModelConfig, RunConfig
from rampline.training.state import make_state


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


@pytest.mark.parametrize("engine", ["loop", "fit"])
def test_the_rate_follows_the_step(engine, digits, strategy):
    rate = LearningRateConfig(schedule="ramp", start=0.0, peak=0.01, ramp_epochs=1)
    state = make_state(RunConfig(learning_rate=rate, engine=engine), digits, strategy)
    assert float(state.optimizer.learning_rate) == 0.0
    state.step.assign(1)
    # 120 examples in batches of 64: two steps an epoch.
    assert float(state.optimizer.learning_rate) == pytest.approx(0.005)


def test_mixed_precision_with_float16_scales_the_loss(digits, strategy):
    state = make_state(RunConfig(precision="mixed_float16"), digits, strategy)
    assert isinstance(state.optimizer, keras.mixed_precision.LossScaleOptimizer)
    assert state.learning_rate.step is state.step


def test_an_optimizer_that_copies_the_weights_copies_those_that_were_loaded(digits, strategy, tmp_path):
    saved = compiled_models.schedule_free(digits.image_shape, len(digits.class_names))
    saved.save(tmp_path / "saved.keras")
    model = ModelConfig(name="compiled_models:schedule_free", weights=str(tmp_path / "saved.keras"))
    optimizer = make_state(RunConfig(model=model), digits, strategy).optimizer
    for copy, weight in zip(optimizer._momentums, saved.trainable_variables, strict=True):
        np.testing.assert_array_equal(copy.value, weight.value)
