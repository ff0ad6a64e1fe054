"""Each replica draws its own Dropout masks: in every launch the same ones, and the same after a resume."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from role_functions import RunRoles, draw_masks
from runs import make_config

from rampline.training.random_draws import draw_per_replica, seed_generators, seed_of_step

MIRRORED = {"strategy": "mirrored", "replicas": 2, "virtual_devices": 2}


@pytest.fixture(scope="module")
def draw(run_roles: RunRoles):
    """`draw(strategy=…, …)` gives (steps, replicas, 64) masks of 4 steps, and of the last two after a resume."""

    def run(engine: str = "loop", **cluster) -> tuple[np.ndarray, np.ndarray]:
        config = make_config(model="small_models:with_kept_mask", **cluster)
        roles = run_roles(draw_masks, dataclasses.replace(config, engine=engine))
        masks, again = (np.concatenate([role[name] for role in roles], axis=1) for name in ("masks", "again"))
        return masks, again

    return run


@pytest.fixture(scope="module")
def mirrored(draw) -> np.ndarray:
    """The masks of two mirrored replicas, which a resume has changed nothing in."""
    masks, again = draw(**MIRRORED)
    np.testing.assert_array_equal(again, masks[2:])
    return masks


def test_no_two_replicas_and_no_two_steps_draw_the_same(mirrored: np.ndarray) -> None:
    assert mirrored.shape == (4, 2, 64)
    assert len({mask.tobytes() for mask in mirrored.reshape(8, 64)}) == 8
    assert (mirrored > 0).mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    "engine, cluster",
    [
        pytest.param("loop", {"strategy": "multi_worker", "workers": 2}, id="multi_worker", marks=pytest.mark.long),
        pytest.param("fit", MIRRORED, id="fit", marks=pytest.mark.long),
        pytest.param("loop", {"strategy": "single"}, id="single"),
    ],
)
def test_the_masks_depend_on_seed_step_and_replica_alone(engine, cluster, mirrored, draw) -> None:
    masks, again = draw(engine, **cluster)
    np.testing.assert_array_equal(masks, mirrored[:, : masks.shape[1]])
    np.testing.assert_array_equal(again, masks[2:])


def test_generators_of_nested_layers_are_found_once() -> None:
    shared = keras.layers.Dropout(0.5)
    inner = keras.Sequential([keras.Input((3,)), shared, keras.layers.GaussianNoise(0.1)])
    model = keras.Sequential([keras.Input((3,)), inner, shared, keras.layers.Dense(2)])
    assert len(seed_generators(model)) == 2
    draw_per_replica(model)
    # The first replica draws what it would without the others.
    (first, other) = (g.next().numpy().tolist() for g in seed_generators(model))
    assert first[1] == other[1] == 0
    assert first[0] == int(seed_generators(model)[0].state.numpy()[0])


def test_draws_of_a_step_begin_with_its_number() -> None:
    state = tf.constant([7, 3], tf.int64)
    assert seed_of_step(state, tf.constant(2, tf.int32)).numpy().tolist() == [7, 2048]
