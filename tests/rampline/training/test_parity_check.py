"""The parity check tells rounding from errors: real strategies, and steps with errors put in."""

import dataclasses
import json
import subprocess
import sys

import pytest
from runs import SUPPORT, make_config, role_environment

from rampline.config import LearningRateConfig, OptimizerConfig, RunConfig, to_dict
from rampline.data.dataset import PreparedDataset

SCRIPT = SUPPORT / "parity_process.py"
WRONG = ("per_replica_count", "summed", "full_batch")


def check_cases(config: RunConfig, digits: PreparedDataset, *cases: str) -> dict[str, dict]:
    """Results by case."""
    command = [sys.executable, str(SCRIPT), json.dumps(to_dict(config)), str(digits.directory), *cases]
    done = subprocess.run(command, env=role_environment(), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return {result["case"]: result for result in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("optimizer, rate", [("sgd", 0.02), ("adam", 0.001)])
def test_errors_are_far_above_rounding(optimizer: str, rate: float, digits: PreparedDataset) -> None:
    # 27 gives the two replicas shares of 14 and 13; of 120 examples 12 are left for the last batch.
    config = make_config("mirrored", batch=27, replicas=2, virtual_devices=2)
    settings = {"optimizer": OptimizerConfig(name=optimizer), "learning_rate": LearningRateConfig(peak=rate)}
    config = dataclasses.replace(config, **settings)
    results = check_cases(config, digits, "right", *WRONG)
    right = results.pop("right")
    assert (right["status"], right["precision"], right["first_step"], right["steps"]) == ("pass", "float64", 0, 10)
    assert right["losses"][-1] < right["losses"][0]
    assert max(right["max_loss_diff"], right["max_weight_diff"]) < 1e-12
    assert set(results) == set(WRONG)
    for case, result in results.items():
        assert result["status"] == "fail", case
        assert result["max_weight_diff"] > 1e-6, case
        assert "the replicas train differently" in result["reason"]


def test_model_fit_trains_as_the_loop_on_one_replica(digits: PreparedDataset) -> None:
    # Shares of 14 and 15; of 120 examples 2 are left for the last batch, and two replicas get none.
    config = make_config("mirrored", model="parity_models:penalised", batch=59, replicas=4, virtual_devices=4)
    rate = LearningRateConfig(schedule="ramp", start=0.0, peak=0.02, ramp_epochs=1)
    result = check_cases(dataclasses.replace(config, engine="fit", learning_rate=rate), digits, "right")["right"]
    assert (result["status"], result["precision"], result["notes"]) == ("pass", "float64", [])
    assert result["losses"][-1] < result["losses"][0]
    assert max(result["max_loss_diff"], result["max_weight_diff"]) < 1e-12


@pytest.mark.parametrize("engine", ["loop", "fit"])
def test_a_replica_with_other_examples_fails(engine: str, digits: PreparedDataset) -> None:
    config = make_config("mirrored", model="parity_models:with_other_examples", replicas=2, virtual_devices=2)
    result = check_cases(dataclasses.replace(config, engine=engine), digits, "right")["right"]
    assert result["status"] == "fail"
    assert result["max_loss_diff"] > 1e-3


def test_a_model_that_insists_on_float32_is_compared_with_what_float32_allows(digits: PreparedDataset) -> None:
    config = make_config("mirrored", model="small_models:smooth", replicas=2, virtual_devices=2)
    result = check_cases(config, digits, "right")["right"]
    assert (result["status"], result["precision"], result["tolerance"]) == ("pass", "float32", 1e-4)
    assert 0 < result["max_weight_diff"] < 1e-5


def test_a_loss_that_is_not_finite_fails_with_the_step(digits: PreparedDataset) -> None:
    config = make_config("mirrored", model="small_models:exploding", replicas=2, virtual_devices=2)
    result = check_cases(config, digits, "right")["right"]
    assert result["status"] == "fail"
    assert "on one replica: lower learning_rate.peak" in result["reason"]
    assert None in result["losses"]


def test_replicas_that_do_not_skip_a_step_together_are_found(digits: PreparedDataset) -> None:
    config = make_config("mirrored", model="parity_models:with_random_parts", replicas=2, virtual_devices=2)
    results = check_cases(config, digits, "one verdict", "the first's")
    assert {case: result["skips"] for case, result in results.items()} == {"one verdict": True, "the first's": False}
