"""`cluster.sum: exact`: the same bits with any number of workers, which are those of the all-reduce of two."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from role_functions import Arrays, RunRoles, assert_same_arrays, train_on, train_steps
from runs import make_config

from rampline.config import OptimizerConfig, RunConfig

FULL_SIZE, STEPS = 3, 13
# A checkpoint inside the first epoch and one inside the second, which begins at step 9.
CHANGES = ((2, 5), (1, 11), (3, STEPS))


def make_exact(**changes: object) -> RunConfig:
    """BatchNorm, Dropout and Adam; 13 examples do not divide by 3 replicas, nor an epoch by 13."""
    changes = {"workers": FULL_SIZE, "sum": "exact", **changes}
    config = make_config("multi_worker", model="small_models:with_all_state", batch=13, **changes)
    return dataclasses.replace(config, optimizer=OptimizerConfig(name="adam"), steps_per_call=4)


def saved(folder: Path) -> Arrays:
    return dict(np.load(folder / f"step-{STEPS:08d}" / "variables.npz"))


@pytest.mark.parametrize("accumulate", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_training_that_shrinks_and_grows_has_the_bits_of_the_undisturbed_one(
    run_roles: RunRoles, tmp_path: Path, accumulate: int
):
    """With micro-batches of 2, the shares of 4, 4 and 5 examples are of 2, 2 and 3 of them."""
    config = make_exact()
    config = dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate=accumulate))
    (whole,) = run_roles(train_on, config, tmp_path / "whole", STEPS, workers=1)
    parts = [run_roles(train_on, config, tmp_path / "parts", until, workers=count) for count, until in CHANGES]
    assert [len(part) for part in parts] == [count for count, _ in CHANGES]
    found, wanted = saved(tmp_path / "parts"), saved(tmp_path / "whole")
    assert_same_arrays(found, wanted)
    rows = wanted["replica_statistics"]
    assert len({row.tobytes() for row in rows}) == len(rows) == FULL_SIZE
    np.testing.assert_array_equal(np.concatenate([part[0]["losses"] for part in parts]), whole["losses"])
    for worker in parts[-1]:
        for name in ("averaged", "evaluated"):
            np.testing.assert_array_equal(worker[name], whole[name])


@pytest.mark.long
@pytest.mark.parametrize("precision", ["float32", "mixed_float16"])
def test_two_replicas_have_the_bits_of_the_all_reduce(run_roles: RunRoles, precision: str):
    """A sum of two has one order."""
    exact = dataclasses.replace(make_exact(workers=2), precision=precision)
    fast = dataclasses.replace(exact, cluster=dataclasses.replace(exact.cluster, sum="fast"))
    for ours, theirs in zip(run_roles(train_steps, exact, 12), run_roles(train_steps, fast, 12), strict=True):
        assert_same_arrays(ours, theirs)
