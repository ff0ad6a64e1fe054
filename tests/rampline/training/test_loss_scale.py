"""mixed_float16: all replicas skip a step together, and the scale and the weights are those of one replica."""

import dataclasses

import numpy as np
import pytest
from role_functions import Arrays, RunRoles, overflow_once
from runs import make_config, with_recipe

MIRRORED = {"strategy": "mirrored", "replicas": 2, "virtual_devices": 2}
CLUSTERS = [
    pytest.param(MIRRORED, id="mirrored-2"),
    pytest.param({"strategy": "multi_worker", "workers": 2}, id="multi_worker-2", marks=pytest.mark.long),
]
# After each step: doubled by steps 3 and 10, and halved by step 6, which changes nothing else.
POWERS = [10] * 3 + [11] * 3 + [10] * 4 + [11]
UPDATES = [1, 2, 3, 4, 5, 6, 6, *range(7, 11)]


@pytest.fixture(scope="module")
def train(run_roles: RunRoles):
    """`train(strategy=…, …)` returns what each role has noted of a loss that overflows once."""

    def run(engine: str = "loop", **cluster) -> list[Arrays]:
        config = make_config(model="small_models:smooth", **cluster)
        return run_roles(overflow_once, dataclasses.replace(config, engine=engine, precision="mixed_float16"))

    return run


@pytest.fixture(scope="module")
def single(train) -> Arrays:
    return train(strategy="single")[0]


def check(role: Arrays) -> None:
    """One step is skipped, by every replica of a process."""
    for name, expected in {"scale": 2.0 ** np.array(POWERS), "updates": UPDATES}.items():
        np.testing.assert_array_equal(role[name].T, [expected] * role[name].shape[1], err_msg=name)
    np.testing.assert_array_equal(role["weights"][6], role["weights"][5])
    assert np.isfinite(role["weights"]).all()


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_an_overflow_in_one_replica_skips_the_step_in_all(cluster, single, train) -> None:
    roles = train(**cluster)
    for role in [single, *roles]:
        check(role)
    weights = np.concatenate([role["weights"] for role in roles], axis=1)
    assert weights.shape[1] == 2
    np.testing.assert_array_equal(weights[:, 0], weights[:, 1])
    np.testing.assert_allclose(roles[0]["losses"], single["losses"], rtol=1e-2)


@pytest.mark.long
def test_with_averages_and_clipping_too(run_roles: RunRoles) -> None:
    def run(**cluster) -> Arrays:
        config = with_recipe(make_config(model="small_models:smooth", **cluster))
        return run_roles(overflow_once, dataclasses.replace(config, precision="mixed_float16"))[0]

    one, two = run(strategy="single"), run(**MIRRORED)
    for role in (one, two):
        check(role)
    # Clipped with the scale of 2 ** 10 on them, the gradients of all steps together would be less than 1e-4.
    change = np.abs(one["weights"][-1] - one["weights"][0]).max()
    assert change > 2e-3
    np.testing.assert_allclose(two["weights"][-1, 0], one["weights"][-1, 0], atol=0.1 * change)


@pytest.mark.long
def test_model_fit_skips_the_step_in_all_replicas_too(train) -> None:
    (role,) = train(engine="fit", **MIRRORED)
    check(role)
    np.testing.assert_array_equal(role["weights"][:, 0], role["weights"][:, 1])
