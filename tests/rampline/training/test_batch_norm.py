"""Each replica's own moving statistics through a checkpoint: a save changes nothing, a resumed training is the same."""

import dataclasses
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from role_functions import Arrays, RunRoles, save_and_restore, train_steps
from runs import make_config

from rampline.config import BatchConfig
from rampline.errors import ConfigError
from rampline.training.batch_norm import (
    make_average,
    make_gather,
    mean_statistics,
    moving_variables,
    split_statistics,
    write_statistics,
)
from rampline.training.state import make_state

STRATEGIES = {
    "mirrored, 2 replicas": ("mirrored", {"replicas": 2, "virtual_devices": 2}),
    "mirrored, 3 replicas": ("mirrored", {"replicas": 3, "virtual_devices": 3}),
    "2 workers": ("multi_worker", {"workers": 2}),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("mirrored, 2 replicas", marks=pytest.mark.long),
        "mirrored, 3 replicas",
        pytest.param("2 workers", marks=pytest.mark.long),
    ],
)
def roles(request, run_roles: RunRoles, tmp_path_factory) -> list[Arrays]:
    """What each role under one strategy has noted of a training that is saved and restored, and the checkpoint last."""
    strategy, cluster = STRATEGIES[request.param]
    config = make_config(strategy, model="small_models:with_all_state", batch=12, **cluster)
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    workers = run_roles(save_and_restore, dataclasses.replace(config, steps_per_call=2), folder)
    return [*workers, dict(np.load(folder / "step-00000003" / "variables.npz"))]


def at(arrays: Arrays, moment: str) -> list[np.ndarray]:
    """All values of all replicas of a process at that moment."""
    return [arrays[key] for key in sorted(arrays) if key.startswith(f"{moment}/")]


def equal(left: list[np.ndarray], right: list[np.ndarray]) -> bool:
    return len(left) == len(right) and all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def own_rows(arrays: Arrays, moment: str) -> np.ndarray:
    """(local replicas, total) statistics that the replicas of a process have themselves."""
    numbers = [i for i, name in enumerate(arrays["names"]) if "moving_" in str(name)]
    keys = [sorted(key for key in arrays if key.startswith(f"{moment}/{i:03d}/")) for i in numbers]
    return np.stack([np.concatenate([arrays[key] for key in replica]) for replica in zip(*keys, strict=True)])


def test_every_worker_gets_the_row_of_every_replica(roles):
    *workers, _ = roles
    rows = np.concatenate([own_rows(arrays, "before") for arrays in workers])
    assert len({row.tobytes() for row in rows}) == len(rows) >= 2
    for arrays in workers:
        np.testing.assert_array_equal(arrays["gathered"], rows)
        np.testing.assert_array_equal(arrays["gathered again"], rows)


def test_a_save_leaves_the_training_as_it_was(roles):
    for arrays in roles[:-1]:
        assert equal(at(arrays, "saved"), at(arrays, "before"))


def test_the_checkpoint_is_the_averaged_model(roles):
    *workers, checkpoint = roles
    mean = workers[0]["gathered"].astype(np.float64).mean(axis=0)
    for arrays in workers:
        for row in own_rows(arrays, "averaged"):
            np.testing.assert_allclose(row, mean, rtol=1e-6)
        for row in own_rows(arrays, "rescaled"):
            expected = np.concatenate([arrays["gathered"], arrays["gathered"][:1]]).mean(axis=0)
            np.testing.assert_allclose(row, expected, rtol=1e-6)
    np.testing.assert_array_equal(checkpoint["replica_statistics"], workers[0]["gathered"])


def test_a_resumed_training_is_bit_equal_with_dropout_and_batch_norm(roles):
    for arrays in roles[:-1]:
        assert equal(at(arrays, "restored"), at(arrays, "before"))
        assert equal(at(arrays, "trained again"), at(arrays, "trained"))
        assert not equal(at(arrays, "trained"), at(arrays, "before"))
        assert not equal(at(arrays, "averaged"), at(arrays, "before"))


def test_the_state_of_dropout_is_in_the_checkpoint(roles):
    *workers, checkpoint = roles
    (number,) = [i for i, name in enumerate(workers[0]["names"]) if "seed_generator_state" in str(name)]
    for arrays in workers:
        first, saved = (arrays[f"{moment}/{number:03d}/0"] for moment in ("first", "before"))
        assert saved.tolist() == [first[0], first[1] + 3]  # one mask per step
        np.testing.assert_array_equal(checkpoint[f"model/{number:05d}"], saved)


def test_one_replica_has_one_row_and_nested_layers_are_found():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    inner = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
    wide = keras.layers.BatchNormalization(dtype="float64")
    model = keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(2), wide])
    values = np.arange(10, dtype=np.float64)[None] / 3
    values[0, :6] = values[0, :6].astype(np.float32)
    write_statistics(model, strategy, values)
    found = make_gather(model, strategy)()
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, values)
    parts = split_statistics(model, found[0])
    for variable, part in zip(moving_variables(model), parts, strict=True):
        assert part.dtype == variable.dtype
        np.testing.assert_array_equal(part, np.asarray(variable.value))


def test_frozen_layers_have_no_statistics_to_exchange_also_where_an_older_version_wrote_some():
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    frozen, trained = keras.layers.BatchNormalization(trainable=False), keras.layers.BatchNormalization()
    model = keras.Sequential([keras.Input((3,)), frozen, trained])
    assert [v.path for v in moving_variables(model)] == [v.path for v in (trained.moving_mean, trained.moving_variance)]
    write_statistics(model, strategy, np.full((2, 12), 7, np.float32))
    assert np.asarray(trained.moving_mean.value).tolist() == [0, 0, 0]
    write_statistics(model, strategy, np.full((2, 6), 7, np.float32))
    assert np.asarray(trained.moving_mean.value).tolist() == [7, 7, 7]
    assert np.asarray(frozen.moving_mean.value).tolist() == [0, 0, 0]


def test_all_statistics_of_a_layer_with_renorm_are_averaged(monkeypatch):
    # Groups of another size may have the first key in this process.
    monkeypatch.setattr(tf.distribute.MirroredStrategy, "_collective_key_base", 1000)
    strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(renorm=True)])
    rows = tf.random.stateless_normal((2, 4, 3), seed=(1, 2))

    def train() -> None:
        context = tf.distribute.get_replica_context()
        model(rows[context.replica_id_in_sync_group], training=True)

    strategy.run(tf.function(train))
    copies = [strategy.experimental_local_results(v.value) for v in model.non_trainable_variables]
    before = [np.stack([copy.numpy() for copy in pair]) for pair in copies]
    assert len(before) == 5
    make_average(model, strategy)()
    for pair, values in zip(copies, before, strict=True):
        assert not np.array_equal(*values)
        for copy in pair:
            np.testing.assert_allclose(copy.numpy(), values.mean(axis=0), rtol=1e-6)


def test_the_mean_does_not_overflow_and_keeps_the_type():
    mean = mean_statistics(np.full((4, 2), 3e38, np.float32))
    assert mean.dtype == np.float32
    assert mean.tolist() == [np.float32(3e38)] * 2


@pytest.mark.parametrize(
    "strategy, cluster",
    [
        ("mirrored", {"replicas": 2, "virtual_devices": 2}),
        pytest.param("multi_worker", {"workers": 2}, marks=pytest.mark.long),
    ],
)
def test_synchronized_layers_train_as_one_replica_does(run_roles: RunRoles, strategy: str, cluster: dict):
    """17 examples do not divide by 2 replicas, and the last batch of an epoch is of one."""
    model = "small_models:synchronized"
    (one,) = run_roles(train_steps, make_config("single", model=model, batch=17), 10)
    for arrays in run_roles(train_steps, make_config(strategy, model=model, batch=17, **cluster), 10):
        for name in ("losses", *(name for name in one if name.startswith("variable_"))):
            np.testing.assert_allclose(arrays[name], one[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "strategy, cluster, changes, setting",
    [
        ("parameter_server", {"parameter_servers": 1}, {}, "strategy=parameter_server"),
        ("multi_worker", {"sum": "exact"}, {}, "cluster.sum=exact"),
        ("mirrored", {"replicas": 2}, {"batch": BatchConfig(accumulate=2)}, "batch.accumulate=2"),
        ("mirrored", {"replicas": 2}, {"xla": True}, "xla=true"),
    ],
)
def test_synchronized_layers_are_refused_where_replicas_do_not_meet(digits, strategy, cluster, changes, setting):
    config = dataclasses.replace(make_config(strategy, model="small_models:synchronized", **cluster), **changes)
    message = (
        f"model.name='small_models:synchronized' has a BatchNormalization with synchronized=True: not with {setting}"
    )
    with pytest.raises(ConfigError, match=f"^{message}$"):
        make_state(config, digits, tf.distribute.get_strategy())
