"""The learning rate at chosen steps, against values worked out by hand; ten steps are an epoch."""

from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from rampline.config import BatchConfig, ClusterConfig, LearningRateConfig, RunConfig
from rampline.config.learning_rate import SCHEDULES, Schedule, describe_schedule, learning_rate_at, learning_rate_curve
from rampline.training.optimizers import StepLearningRate

STEPS_PER_EPOCH = 10


def make_config(epochs: int = 10, replicas: int = 1, batch: int = 64, **rate) -> RunConfig:
    return RunConfig(
        epochs=epochs,
        strategy="mirrored",
        cluster=ClusterConfig(replicas=replicas),
        batch=BatchConfig(size=batch),
        learning_rate=LearningRateConfig(**rate),
    )


def rate_of(config: RunConfig):
    """The rate at steps."""
    return partial(learning_rate_at, config, STEPS_PER_EPOCH)


def rates(config: RunConfig, steps: list[int]) -> list[float]:
    return [float(learning_rate_at(config, STEPS_PER_EPOCH, tf.constant(step))) for step in steps]


RAMP = {"schedule": "ramp", "start": 1e-4, "peak": 1e-2, "floor": 1e-3, "ramp_epochs": 2, "decay": 0.5}
COSINE = {"schedule": "cosine", "start": 0.0, "peak": 0.02, "floor": 0.004, "ramp_epochs": 1, "hold_epochs": 1}
EXPECTED = {
    "constant": (make_config(peak=0.003), {0: 0.003, 7: 0.003, 99: 0.003}),
    # 1e-4 + (1e-2 - 1e-4) * epoch / 2, then (1e-2 - 1e-3) * 0.5 ** (epoch - 2) + 1e-3.
    "ramp": (
        make_config(**RAMP),
        {0: 1e-4, 1: 5.95e-4, 10: 5.05e-3, 19: 9.505e-3, 20: 1e-2, 30: 5.5e-3, 40: 3.25e-3, 25: 7.36396103e-3},
    ),
    "ramp with hold": (make_config(**RAMP, hold_epochs=3), {20: 1e-2, 35: 1e-2, 50: 1e-2, 60: 5.5e-3, 70: 3.25e-3}),
    "no ramp": (make_config(**{**RAMP, "ramp_epochs": 0}), {0: 1e-2, 10: 5.5e-3, 20: 3.25e-3}),
    "ramp to its floor": (make_config(epochs=100, **RAMP), {999: 1e-3}),
    # fashion_mnist: 1e-3 for epochs 0 to 2, 1e-4 for 3 to 6, 1e-5 from 7 on; by default, too.
    "steps": (
        make_config(schedule="steps", peak=1e-3, decay=0.1),
        {0: 1e-3, 29: 1e-3, 30: 1e-4, 69: 1e-4, 70: 1e-5, 99: 1e-5},
    ),
    "no steps": (make_config(schedule="steps", peak=1e-3, step_epochs=()), {0: 1e-3, 99: 1e-3}),
    # Half a cosine over epochs 2 to 10: 0.004 + 0.016 * (1 + cos(pi * (epoch - 2) / 8)) / 2.
    "cosine": (
        make_config(**COSINE),
        {0: 0.0, 5: 0.01, 10: 0.02, 20: 0.02, 40: 0.0176568542, 60: 0.012, 80: 0.0063431458, 100: 0.004, 120: 0.004},
    ),
    "cosine that never falls": (make_config(epochs=2, **COSINE), {5: 0.01, 15: 0.02, 19: 0.02}),
}


@pytest.mark.parametrize("config, expected", EXPECTED.values(), ids=EXPECTED)
def test_rates_worked_out_by_hand(config, expected):
    assert rates(config, list(expected)) == pytest.approx(list(expected.values()), rel=2e-6, abs=1e-9)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_many_steps_at_once_give_the_same_as_one_by_one(schedule):
    config = make_config(schedule=schedule, ramp_epochs=1, step_epochs=(2, 5))
    steps = [0, 3, 10, 11, 35, 60, 99]
    together = learning_rate_at(config, STEPS_PER_EPOCH, tf.constant(steps, tf.int64))
    assert together.dtype == tf.float32
    np.testing.assert_array_equal(together.numpy(), np.array(rates(config, steps), np.float32))


@pytest.mark.parametrize("schedule", ["constant", "ramp"])
@pytest.mark.parametrize("scale_with, peak", [("none", 0.01), ("replicas", 0.04), ("global_batch", 0.0025)])
def test_scaling_lifts_the_peak_alone(schedule, scale_with, peak):
    rate = {"start": 1e-4, "peak": 0.01, "ramp_epochs": 1, "floor": 1e-3, "scale_with": scale_with}
    config = make_config(schedule=schedule, replicas=4, batch=64, **rate)
    start = 1e-4 if schedule == "ramp" else peak
    assert rates(config, [0, 10]) == pytest.approx([start, peak], rel=1e-6)


def test_the_curve_goes_from_the_first_step_to_the_last():
    config = make_config(**RAMP)
    curve = learning_rate_curve(rate_of(config), config.epochs, STEPS_PER_EPOCH, points=50)
    assert len(curve) == 50
    assert curve[0] == pytest.approx([0.0, 1e-4])
    assert curve[-1] == pytest.approx([9.9, rates(config, [99])[0]])
    epochs = [epoch for epoch, _ in curve]
    assert epochs == sorted(set(epochs))
    short = learning_rate_curve(rate_of(make_config()), 1, 3)
    assert [epoch for epoch, _ in short] == pytest.approx([0, 1 / 3, 2 / 3])


def test_the_schedule_follows_our_counter():
    config = make_config(**RAMP)
    step = tf.Variable(20, dtype=tf.int64)
    ours = StepLearningRate(rate_of(config), step)
    assert float(ours(tf.constant(0))) == pytest.approx(1e-2)
    step.assign(40)
    assert float(ours(tf.constant(0))) == pytest.approx(3.25e-3)
    with pytest.raises(TypeError, match="rebuilt from the run"):
        ours.get_config()


def test_a_schedule_is_allowed_trained_and_described_by_its_one_entry(monkeypatch):
    halved = Schedule(
        rate=lambda config, epoch: config.peak_learning_rate / (1 + epoch), words=lambda _: "halved", about=""
    )
    monkeypatch.setitem(SCHEDULES, "halving", halved)
    config = make_config(schedule="halving", peak=0.4)
    assert rates(config, [0, STEPS_PER_EPOCH, 3 * STEPS_PER_EPOCH]) == pytest.approx([0.4, 0.2, 0.1])
    assert describe_schedule(config) == "halving: halved"
