"""Which strategy goes with which cluster and engine, and the arithmetic of batches and rates."""

import dataclasses

import pytest

from rampline.config import (
    BatchConfig,
    ClusterConfig,
    DataConfig,
    LearningRateConfig,
    RunConfig,
    StopConfig,
    flatten,
    from_dict,
    to_dict,
)
from rampline.errors import ConfigError

WRONG = [
    ("strategy", "horovod", "one of single, mirrored, multi_worker, parameter_server"),
    ("engine", "estimator", "one of loop, fit"),
    ("epochs", 0, "a whole number of at least 1"),
    ("seed", -1, "a whole number of at least 0 and at most 4294967295"),
    ("seed", 2**32, "a whole number of at least 0 and at most 4294967295"),
    ("precision", "float16", "one of float32, mixed_float16, mixed_bfloat16"),
    ("steps_per_call", 0, "auto or a whole number of at least 1"),
    ("xla", 1, "true or false"),
]
TOGETHER = [
    ("multi_worker", {}, {"engine": "fit"}, "engine='fit'", "loop for strategy multi_worker"),
    ("parameter_server", {"parameter_servers": 1}, {"engine": "fit"}, "engine='fit'", "loop for strategy"),
    ("single", {}, {"engine": "fit", "xla": True}, "xla=True", "false with engine=fit"),
    ("parameter_server", {"parameter_servers": 1}, {"deterministic": True}, "deterministic=True", "false for strategy"),
    ("single", {"workers": 2}, {}, "cluster.workers=2", "1 for strategy single"),
    ("mirrored", {"workers": 2}, {}, "cluster.workers=2", "1 for strategy mirrored"),
    ("single", {"replicas": 2}, {}, "cluster.replicas=2", "1 for strategy single"),
    ("parameter_server", {"replicas": 2, "parameter_servers": 1}, {}, "cluster.replicas=2", "1 for strategy"),
    ("parameter_server", {}, {}, "cluster.parameter_servers=0", "at least 1 for strategy parameter_server"),
    ("multi_worker", {"parameter_servers": 1}, {}, "cluster.parameter_servers=1", "0 for strategy multi_worker"),
    ("mirrored", {"replicas": 4, "virtual_devices": 2}, {}, "cluster.virtual_devices=2", "0 or at least"),
    ("mirrored", {"replicas": 4}, {"batch": BatchConfig(size=3)}, "batch.size=3", "each of 4 replicas"),
    ("multi_worker", {"replicas": 2, "workers": 2}, {"batch": BatchConfig(size=3)}, "batch.size=3", "each of 4"),
    (
        "multi_worker",
        {"workers": 2, "min_workers": 3},
        {},
        "cluster.min_workers=3",
        "null or at most cluster.workers=2",
    ),
    ("parameter_server", {"parameter_servers": 1, "min_workers": 1}, {}, "cluster.min_workers=1", "null for strategy"),
    ("mirrored", {"sum": "exact"}, {}, "cluster.sum='exact'", "fast for strategy mirrored"),
    ("multi_worker", {"replicas": 2, "sum": "exact"}, {}, "cluster.replicas=2", "1 with cluster.sum=exact"),
    (
        "single",
        {},
        {"stop": StopConfig(max_cost_usd=2)},
        "stop.max_cost_usd=2",
        "null without cluster.price_per_hour, or a cluster.machine of the study's prices",
    ),
]


@pytest.mark.parametrize("key, value, allowed", WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(key, value, allowed):
    with pytest.raises(ConfigError) as failure:
        RunConfig(**{key: value})
    assert str(failure.value) == f"{key}={value!r} is not allowed: it must be {allowed}"


@pytest.mark.parametrize("strategy, cluster, values, named, allowed", TOGETHER)
def test_values_that_do_not_go_together_are_named(strategy, cluster, values, named, allowed):
    with pytest.raises(ConfigError) as failure:
        RunConfig(strategy=strategy, cluster=ClusterConfig(**cluster), **values)
    assert str(failure.value).startswith(f"{named} is not allowed: it must be ")
    assert allowed in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("schedule", ["ramp", "cosine"])
def test_the_floor_lies_below_the_scaled_peak(schedule):
    rate = {"schedule": schedule, "peak": 0.01, "scale_with": "global_batch", "base_batch_size": 256, "floor": 0.005}
    RunConfig(batch=BatchConfig(size=128), learning_rate=LearningRateConfig(**rate))
    with pytest.raises(ConfigError) as failure:
        RunConfig(batch=BatchConfig(size=64), learning_rate=LearningRateConfig(**rate))
    assert str(failure.value) == "learning_rate.floor=0.005 is not allowed: it must be at most 0.0025, the scaled peak"


@pytest.mark.parametrize("schedule", ["constant", "steps"])
def test_the_floor_counts_where_the_schedule_has_it(schedule):
    assert RunConfig(learning_rate=LearningRateConfig(schedule=schedule, peak=1e-7)).peak_learning_rate == 1e-7


@pytest.mark.parametrize("strategy, cluster", [("single", {}), ("mirrored", {"replicas": 4}), ("multi_worker", {})])
def test_the_number_of_virtual_devices_may_be_left_to_the_machine(strategy, cluster):
    config = RunConfig(strategy=strategy, cluster=ClusterConfig(virtual_devices="auto", **cluster))
    assert from_dict(to_dict(config)).cluster.virtual_devices == "auto"


def test_a_changed_copy_is_checked_as_well():
    config = RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=2))
    with pytest.raises(ConfigError, match=r"^epochs=0 is not allowed"):
        dataclasses.replace(config, epochs=0)
    with pytest.raises(ConfigError, match=r"^cluster\.replicas=2 is not allowed: it must be 1 for strategy single"):
        dataclasses.replace(config, strategy="single")
    with pytest.raises(ConfigError, match=r"^data='digits' is not allowed: it must be a mapping of keys"):
        dataclasses.replace(config, data="digits")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 3  # type: ignore[misc]


def test_equal_settings_are_one():
    settings = [DataConfig(limit=5), DataConfig(limit=6), DataConfig(limit=5)]
    assert list(dict.fromkeys(settings)) == settings[:2]


def test_numbers_are_written_as_they_were_given():
    """An older execution that goes on has the same params in MLflow, which refuses others."""
    leaves = flatten(from_dict({"learning_rate": {"peak": 1, "floor": 0, "step_epochs": [2, 4.0]}}))
    written = [str(leaves[f"learning_rate.{key}"]) for key in ("peak", "floor", "step_epochs", "ramp_epochs")]
    assert written == ["1", "0", "(2, 4.0)", "2.0"]


# strategy, cluster, batch -> replicas, in sync, per replica, global, steps for 1,000 examples
BATCHES = [
    ("single", {}, (64, "global"), (1, 1, 64, 64, 16)),
    ("single", {}, (64, "replica"), (1, 1, 64, 64, 16)),
    ("mirrored", {"replicas": 4}, (64, "global"), (4, 4, 16, 64, 16)),
    ("mirrored", {"replicas": 4}, (64, "replica"), (4, 4, 64, 256, 4)),
    ("mirrored", {"replicas": 3}, (64, "global"), (3, 3, 22, 64, 16)),
    ("multi_worker", {"workers": 3}, (50, "replica"), (3, 3, 50, 150, 7)),
    ("multi_worker", {"workers": 2, "replicas": 2}, (30, "global"), (4, 4, 8, 30, 34)),
    ("parameter_server", {"workers": 2, "parameter_servers": 1}, (64, "global"), (2, 1, 64, 64, 16)),
    ("parameter_server", {"workers": 2, "parameter_servers": 1}, (64, "replica"), (2, 1, 64, 64, 16)),
]


@pytest.mark.parametrize("strategy, cluster, batch, expected", BATCHES)
def test_batches_of_every_strategy(strategy, cluster, batch, expected):
    size, per = batch
    config = RunConfig(strategy=strategy, cluster=ClusterConfig(**cluster), batch=BatchConfig(size=size, per=per))
    found = (config.replicas, config.num_replicas_in_sync, config.per_replica_batch_size, config.global_batch_size)
    assert (*found, config.steps_per_epoch(1000)) == expected
    assert config.is_synchronous == (strategy != "parameter_server")


def test_an_epoch_that_fits_exactly_has_no_extra_step():
    assert [RunConfig().steps_per_epoch(n) for n in (1, 64, 65, 128)] == [1, 1, 2, 2]


def test_replicas_share_a_batch_that_is_not_full_too():
    config = RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=3))
    assert [config.share_of(n) for n in (1, 50, 64, 1000)] == [1, 17, 22, 22]


def test_parameter_servers_do_not_scale_the_peak_with_replicas():
    cluster = ClusterConfig(workers=4, parameter_servers=1)
    rate = LearningRateConfig(peak=0.001, scale_with="replicas")
    assert RunConfig(strategy="parameter_server", cluster=cluster, learning_rate=rate).peak_learning_rate == 0.001
