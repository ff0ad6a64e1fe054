"""What is tried for a run, in which order, and that only what is allowed is."""

import dataclasses

import pytest

from rampline.config import BatchConfig, ClusterConfig, LearningRateConfig, RunConfig
from rampline.tuning.trial import (
    BATCH,
    PRECISION,
    XLA,
    Limits,
    candidates,
    config_to_measure,
    order_groups,
    with_changes,
)

LIMITS = Limits(train_examples=1297)
SINGLE = RunConfig(batch=BatchConfig(size=32), steps_per_call=16)
MIRRORED = dataclasses.replace(SINGLE, strategy="mirrored", cluster=ClusterConfig(replicas=2, virtual_devices=2))
MULTI_WORKER = dataclasses.replace(SINGLE, strategy="multi_worker", cluster=ClusterConfig(workers=2))
PARAMETER_SERVER = dataclasses.replace(
    SINGLE, strategy="parameter_server", cluster=ClusterConfig(workers=2, parameter_servers=1)
)


def values(group: str, config: RunConfig, key: str, limits: Limits = LIMITS) -> list[object]:
    return [changes[key] for changes in candidates(group, config, limits) if key in changes]


def test_what_may_be_adopted_comes_first_and_xla_on_a_processor_last() -> None:
    assert order_groups(LIMITS) == (BATCH, PRECISION, XLA)
    assert order_groups(Limits(train_examples=1297, has_gpu=True)) == (XLA, BATCH, PRECISION)
    assert order_groups(Limits(train_examples=1297, allow_precision=True)) == (PRECISION, BATCH, XLA)
    both = Limits(train_examples=1297, has_gpu=True, allow_batch=True, allow_precision=True)
    assert order_groups(both) == (BATCH, PRECISION, XLA)


def test_what_a_run_has_already_or_may_not_have_is_not_tried() -> None:
    assert values(XLA, SINGLE, "xla") == [True]
    assert values(PRECISION, SINGLE, "precision") == ["mixed_bfloat16"]
    assert candidates(PRECISION, with_changes(SINGLE, {"precision": "mixed_bfloat16"}), LIMITS) == []
    gpu = Limits(train_examples=1297, has_gpu=True)
    assert values(PRECISION, SINGLE, "precision", gpu) == ["mixed_bfloat16", "mixed_float16"]
    assert candidates(XLA, dataclasses.replace(SINGLE, engine="fit"), LIMITS) == []
    assert candidates(XLA, PARAMETER_SERVER, LIMITS) == []


def test_a_text_is_set_as_it_is_whatever_is_in_it() -> None:
    source = 'folder:/my "best" images\\scans'
    changed = with_changes(SINGLE, {"data.source": source, "data.prefetch": "off"})
    assert (changed.data.source, changed.data.prefetch) == (source, "off")


@pytest.mark.parametrize("config", [SINGLE, MIRRORED], ids=["single", "mirrored"])
def test_batches_double_in_the_run_s_own_unit_until_one_is_the_epoch(config: RunConfig) -> None:
    assert values(BATCH, config, "batch.size") == [64, 128, 256, 512, 1024, 16]


def test_a_batch_per_replica_stays_one_and_the_largest_is_the_user_s() -> None:
    config = dataclasses.replace(MIRRORED, batch=BatchConfig(size=32, per="replica"))
    limits = dataclasses.replace(LIMITS, max_batch=128)
    found = candidates(BATCH, config, limits)
    assert [changes["batch.size"] for changes in found] == [64, 128, 16]
    assert [with_changes(config, changes).global_batch_size for changes in found] == [128, 256, 32]
    assert found[1]["learning_rate.peak"] == pytest.approx(2 * config.learning_rate.peak)


def test_a_batch_whose_scaled_peak_lies_below_the_floor_is_not_tried() -> None:
    rate = LearningRateConfig(schedule="ramp", floor=1e-3, scale_with="global_batch", base_batch_size=32)
    assert values(BATCH, dataclasses.replace(SINGLE, learning_rate=rate), "batch.size") == [64, 128, 256, 512, 1024]


def test_a_half_that_cannot_be_accumulated_is_not_tried() -> None:
    config = dataclasses.replace(SINGLE, batch=BatchConfig(size=32, accumulate=32))
    assert values(BATCH, config, "batch.size") == [64, 128, 256, 512, 1024]


def test_of_several_processes_one_replica_with_its_share_is_measured() -> None:
    measured = config_to_measure(MULTI_WORKER)
    assert (measured.strategy, measured.global_batch_size, measured.steps_per_call) == ("single", 16, 16)
    assert config_to_measure(PARAMETER_SERVER).global_batch_size == 32
    assert config_to_measure(MIRRORED).strategy == "mirrored"
