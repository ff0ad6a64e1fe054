"""What is tried for a run, in which order, and that only what is allowed is."""

import dataclasses

import pytest

from rampline.config import BatchConfig, ClusterConfig, RunConfig
from rampline.tuning.space import BATCH, CALLS, INPUT, PRECISION, XLA, Limits, candidates, order_groups
from rampline.tuning.trial import config_to_measure, with_changes

LIMITS = Limits(train_examples=1297)
SINGLE = RunConfig(batch=BatchConfig(size=32), steps_per_call=16)
MIRRORED = dataclasses.replace(SINGLE, strategy="mirrored", cluster=ClusterConfig(replicas=2, virtual_devices=2))
MULTI_WORKER = dataclasses.replace(SINGLE, strategy="multi_worker", cluster=ClusterConfig(workers=2))
PARAMETER_SERVER = dataclasses.replace(
    SINGLE, strategy="parameter_server", cluster=ClusterConfig(workers=2, parameter_servers=1)
)


def values(group: str, config: RunConfig, key: str, limits: Limits = LIMITS) -> list[object]:
    return [changes[key] for changes in candidates(group, config, limits) if key in changes]


def test_free_settings_come_first_and_those_that_are_only_shown_last() -> None:
    assert order_groups(LIMITS) == (CALLS, INPUT, BATCH, PRECISION, XLA)
    assert order_groups(dataclasses.replace(LIMITS, allow_batch=True)) == (CALLS, BATCH, INPUT, PRECISION, XLA)
    both = Limits(train_examples=1297, has_gpu=True, allow_batch=True, allow_precision=True)
    assert order_groups(both) == (CALLS, BATCH, PRECISION, XLA, INPUT)


def test_a_call_is_no_longer_than_an_epoch() -> None:
    numbers = [value for value in values(CALLS, SINGLE, "steps_per_call") if value != "auto"]
    assert numbers == [41]
    assert candidates(CALLS, dataclasses.replace(SINGLE, steps_per_call="auto"), LIMITS) == []
    many = values(CALLS, SINGLE, "steps_per_call", Limits(train_examples=10**6))
    assert [value for value in many if value != "auto"] == [1024, 256, 64]


def test_what_a_run_has_already_is_not_tried() -> None:
    assert values(XLA, SINGLE, "xla") == [True]
    assert values(INPUT, SINGLE, "data.prefetch") == [2, 8]
    assert "memory" not in values(INPUT, SINGLE, "data.cache")
    off = with_changes(SINGLE, {"data.prefetch": "off"})
    assert off.data.prefetch == "off"
    assert values(INPUT, off, "data.prefetch") == ["auto", 2, 8]


def test_what_is_not_allowed_for_a_run_is_not_tried() -> None:
    fit = dataclasses.replace(SINGLE, engine="fit")
    assert candidates(XLA, fit, LIMITS) == candidates(CALLS, fit, LIMITS) == []
    assert candidates(XLA, PARAMETER_SERVER, LIMITS) == []
    assert values(PRECISION, SINGLE, "precision") == ["mixed_bfloat16"]


@pytest.mark.parametrize(
    "config, sizes",
    [
        (SINGLE, [64, 128, 256, 512, 1024, 16]),
        (MIRRORED, [64, 128, 256, 512, 1024, 16]),  # 16 for each replica: 32 … 512
        (MULTI_WORKER, [64, 128, 256, 512, 1024, 16]),
        (PARAMETER_SERVER, [64, 128, 256, 512, 1024, 16]),
    ],
)
def test_batches_double_in_the_run_s_own_unit_until_one_is_the_epoch(config: RunConfig, sizes: list[int]) -> None:
    assert values(BATCH, config, "batch.size") == sizes


def test_a_batch_per_replica_stays_one_and_the_largest_is_the_user_s() -> None:
    config = dataclasses.replace(MIRRORED, batch=BatchConfig(size=32, per="replica"))
    limits = dataclasses.replace(LIMITS, max_batch=128)
    found = candidates(BATCH, config, limits)
    assert [changes["batch.size"] for changes in found] == [64, 128, 16]
    assert [with_changes(config, changes).global_batch_size for changes in found] == [128, 256, 32]
    assert found[1]["learning_rate.peak"] == pytest.approx(2 * config.learning_rate.peak)


def test_of_several_processes_one_replica_with_its_share_is_measured() -> None:
    measured = config_to_measure(MULTI_WORKER)
    assert (measured.strategy, measured.global_batch_size, measured.steps_per_call) == ("single", 16, 16)
    assert config_to_measure(PARAMETER_SERVER).global_batch_size == 32
    assert config_to_measure(MIRRORED).strategy == "mirrored"
