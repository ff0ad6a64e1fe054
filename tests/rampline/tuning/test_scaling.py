"""The learning rate when the tuner changes the batch: by rule, and never twice."""

import dataclasses

import pytest

from rampline.config import BatchConfig, LearningRateConfig, OptimizerConfig, RunConfig
from rampline.tuning.trial import scaled_learning_rate, with_changes

BEFORE = RunConfig(batch=BatchConfig(size=32), learning_rate=LearningRateConfig(peak=0.002))


def with_optimizer(name: str, **rate: object) -> RunConfig:
    learning_rate = dataclasses.replace(BEFORE.learning_rate, **rate)
    return dataclasses.replace(BEFORE, optimizer=OptimizerConfig(name=name), learning_rate=learning_rate)


@pytest.mark.parametrize(
    "optimizer, size, peak",
    [("sgd", 128, 0.008), ("adam", 128, 0.004), ("adamw", 64, 0.002828), ("rmsprop", 8, 0.001), ("sgd", 16, 0.001)],
)
def test_sgd_scales_linearly_and_adam_with_the_square_root(optimizer: str, size: int, peak: float) -> None:
    before = with_optimizer(optimizer)
    after = with_changes(before, {"batch.size": size})
    assert scaled_learning_rate(before, after) == {"learning_rate.peak": pytest.approx(peak)}


def test_what_the_run_scales_itself_is_not_scaled_again() -> None:
    before = with_optimizer("adam", scale_with="global_batch", base_batch_size=32)
    after = with_changes(before, {"batch.size": 128})
    assert scaled_learning_rate(before, after) == {}
    assert after.peak_learning_rate == pytest.approx(4 * before.peak_learning_rate)


def test_replicas_scale_for_their_number_and_the_rule_for_the_batch() -> None:
    before = with_optimizer("sgd", scale_with="replicas")
    cluster = dataclasses.replace(before.cluster, replicas=2, virtual_devices=2)
    before = dataclasses.replace(before, strategy="mirrored", cluster=cluster)
    after = with_changes(before, {"batch.size": 64})
    scaled = with_changes(after, scaled_learning_rate(before, after))
    assert scaled.peak_learning_rate == pytest.approx(2 * 2 * 0.002)


def test_a_floor_above_the_new_peak_comes_down_with_it() -> None:
    before = with_optimizer("sgd", schedule="ramp", floor=0.0018)
    changes = scaled_learning_rate(before, with_changes(before, {"batch.size": 16}))
    assert changes == {"learning_rate.peak": 0.001, "learning_rate.floor": 0.001}
    assert with_changes(before, changes).learning_rate.floor == 0.001


def test_the_same_batch_changes_nothing() -> None:
    assert scaled_learning_rate(BEFORE, with_changes(BEFORE, {"xla": True})) == {}
