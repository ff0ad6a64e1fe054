"""Every engine and strategy trains the same on augmented examples, those of another replica mixed in.

Of 120 examples 8 are left for the last batch of an epoch.
"""

import dataclasses

import numpy as np
import pytest
from role_functions import Arrays, RunRoles, train_steps
from runs import make_config

from rampline.config import RunConfig

STEPS, TOLERANCE = 9, 1e-5
AUGMENT = ("flip", {"RandomRotation": {"factor": 0.1}}, {"MixUp": {"alpha": 0.4}})


def augmented(config: RunConfig, **other: str) -> RunConfig:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, augment=AUGMENT), **other)


@pytest.fixture(scope="session")
def single(run_roles: RunRoles) -> Arrays:
    """The loop on one device."""
    return run_roles(train_steps, augmented(make_config("single", model="small_models:smooth")), STEPS)[0]


@pytest.mark.parametrize(
    "engine, cluster",
    [
        pytest.param("fit", {"strategy": "single"}, id="single, fit", marks=pytest.mark.long),
        pytest.param("loop", {"strategy": "mirrored", "replicas": 3, "virtual_devices": 3}, id="mirrored"),
        pytest.param(
            "loop",
            {"strategy": "parameter_server", "workers": 1, "parameter_servers": 1},
            id="ps",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "fit",
            {"strategy": "mirrored", "replicas": 3, "virtual_devices": 3},
            id="mirrored, fit",
            marks=pytest.mark.long,
        ),
        pytest.param("loop", {"strategy": "multi_worker", "workers": 2}, id="multi-worker", marks=pytest.mark.long),
    ],
)
def test_mixed_examples_train_as_on_one_device(engine: str, cluster: dict, single: Arrays, run_roles: RunRoles) -> None:
    config = augmented(make_config(model="small_models:smooth", **cluster), engine=engine)
    for role in run_roles(train_steps, config, STEPS):
        np.testing.assert_allclose(role["losses"], single["losses"], atol=TOLERANCE)
        np.testing.assert_allclose(role["evaluated"], single["evaluated"], rtol=TOLERANCE)
        for name in (name for name in single if name.startswith("variable_")):
            np.testing.assert_allclose(role[name], single[name], atol=TOLERANCE)


@pytest.mark.long
def test_mixed_examples_are_harder(single: Arrays, run_roles: RunRoles) -> None:
    (plain,) = run_roles(train_steps, make_config("single", model="small_models:smooth"), STEPS)
    assert plain["losses"][-1] < single["losses"][-1] < single["losses"][0]
