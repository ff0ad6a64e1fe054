"""N replicas train the same as one: loss per step and final weights, with partial last batches."""

import numpy as np
import pytest
from role_functions import Arrays, RunRoles, train_steps
from runs import make_config

from rampline.data.dataset import PreparedDataset

STEPS = 25
TOLERANCE = 1e-5


CLUSTERS = [
    pytest.param(
        {"strategy": "mirrored", "replicas": 2, "virtual_devices": 2}, id="mirrored-2", marks=pytest.mark.long
    ),
    pytest.param({"strategy": "mirrored", "replicas": 4, "virtual_devices": 4}, id="mirrored-4"),
    pytest.param({"strategy": "multi_worker", "workers": 2}, id="multi_worker-2", marks=pytest.mark.long),
]


@pytest.fixture(scope="session")
def single(run_roles: RunRoles, digits: PreparedDataset) -> Arrays:
    """The same steps on one device."""
    config = make_config("single", model="small_models:smooth")
    assert digits.splits["train"] % config.global_batch_size != 0
    assert config.steps_per_epoch(digits.splits["train"]) * 2 < STEPS
    return run_roles(train_steps, config, STEPS)[0]


def _variables(run: Arrays) -> list[np.ndarray]:
    return [run[name] for name in sorted(run) if name.startswith("variable_")]


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_replicas_train_as_one(cluster: dict, single: Arrays, run_roles: RunRoles) -> None:
    assert single["losses"][-1] < 0.8 * single["losses"][0]
    for role in run_roles(train_steps, make_config(model="small_models:smooth", **cluster), STEPS):
        assert len(role["losses"]) == STEPS
        assert np.abs(role["losses"] - single["losses"]).max() < TOLERANCE
        for ours, theirs in zip(_variables(role), _variables(single), strict=True):
            assert np.abs(ours - theirs).max() < TOLERANCE
        np.testing.assert_allclose(role["evaluated"], single["evaluated"], rtol=1e-5)


@pytest.mark.long
def test_batch_norm_statistics_are_the_mean_over_workers(run_roles: RunRoles) -> None:
    config = make_config("multi_worker", model="small_models:with_batch_norm", workers=2)
    first, second = run_roles(train_steps, config, STEPS)
    own = sorted(name for name in first if name.startswith("own_"))
    assert len(own) == 2
    assert any(np.abs(first[name] - second[name]).max() > 1e-6 for name in own), "each worker should see other batches"
    for name in own:
        mean = (first[name] + second[name]) / 2
        averaged = name.replace("own_", "averaged_")
        np.testing.assert_allclose(first[averaged], mean, rtol=1e-6)
        np.testing.assert_array_equal(first[averaged], second[averaged])
