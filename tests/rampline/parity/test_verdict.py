"""Rounding, an error, and a training that rounding alone changes are told apart."""

import dataclasses

import numpy as np
import pytest

from rampline.parity.check import Neutralised, ParityResult
from rampline.parity.check_process import BATCH_STATISTICS, Outcome, compare, excuse

RESULT = ParityResult(status="pass", tolerance=1e-9, steps=3, first_step=4)
NORMALISED = (Neutralised(layer="BatchNormalization", count=1, why=BATCH_STATISTICS),)


def outcome(losses: list[float], weight: float = 1.0, spread: float = 0.0, **values) -> Outcome:
    parts = {"precision": "float64", "neutralised": (), "always_random": [], **values}
    kept = {"names": ["a", "b"], "values": [np.zeros(2), np.array([weight])], "spread": np.array([0.0, spread])}
    return Outcome(losses=np.array(losses), **kept, **parts)


REFERENCE = outcome([2.0, 1.0, 0.5])


@pytest.mark.parametrize(
    "ours, status",
    [
        (outcome([2.0, 1.0 + 1e-10, 0.5]), "pass"),
        (outcome([2.0 + 1.5e-9, 1.0, 0.5]), "pass"),  # relative above 1
        (outcome([2.0, 1.0, 0.5 + 2e-9]), "fail"),
        (outcome([2.0, 1.0, 0.5], weight=1 + 2e-9), "fail"),
        (outcome([2.0, 1.0, 0.5], spread=2e-9), "fail"),
        (outcome([2.0, 1.0, 0.5], weight=float("nan")), "fail"),
        (outcome([2.0, 1.0, 0.5], spread=float("nan")), "fail"),
        (outcome([2.0, 1.0, 0.6], always_random=["noise"]), "not_applicable"),
    ],
)
def test_what_is_more_than_rounding_fails(ours: Outcome, status: str) -> None:
    assert compare(RESULT, ours, REFERENCE).status == status


def test_the_worst_variable_is_named_with_the_differences() -> None:
    result = compare(RESULT, outcome([2.0, 1.0, 0.75], weight=1.5), REFERENCE)
    assert (result.max_loss_diff, result.max_weight_diff, result.worst_variable) == (0.25, 0.5, "b")
    assert result.reference_losses == (2.0, 1.0, 0.5)


def test_a_loss_that_is_not_finite_names_the_step_and_the_side() -> None:
    bad = outcome([2.0, float("nan"), float("nan")])
    result = compare(RESULT, bad, REFERENCE)
    assert (result.status, result.reason) == (
        "fail",
        "the loss is nan at step 6 on the strategy: lower learning_rate.peak",
    )
    assert result.max_loss_diff is None
    assert compare(RESULT, bad, bad).status == "fail"
    fixed = outcome([2.0, float("nan"), float("nan")], neutralised=NORMALISED)
    assert compare(RESULT, fixed, fixed).status == "not_applicable"
    assert compare(RESULT, fixed, REFERENCE).status == "fail"


@pytest.mark.parametrize(
    "losses, shaken, status",
    [
        # A difference that grows from rounding, as it does in the shaken reference.
        ([2.0, 1.0 + 1e-10, 0.5 + 1e-4], [2.0, 1.0 + 1e-11, 0.5 + 1e-5], "not_applicable"),
        # An error shows at once, however unstable the training is later.
        ([2.0, 1.0 + 1e-3, 0.5 + 1e-1], [2.0, 1.0 + 1e-11, 0.5 + 1e-1], "fail"),
        ([2.0, 1.0, 0.5 + 1e-3], [2.0, 1.0, 0.5], "fail"),
    ],
)
def test_an_unstable_training_is_told_from_an_error(losses: list[float], shaken: list[float], status: str) -> None:
    ours = outcome(losses)
    failed = compare(RESULT, ours, REFERENCE)
    assert failed.status == "fail"
    assert excuse(failed, ours, REFERENCE, outcome(shaken)).status == status


@pytest.mark.parametrize(
    "loss, by_rounding, status",
    [
        # Rounding hits every sum, and may be a hundred times the shake of the start.
        (0.5 + 4e-4, 0.5 + 1e-5, "not_applicable"),
        # A training that stays within rounding.
        (0.5 + 3e-4, 0.5 + 1e-7, "fail"),
    ],
)
def test_in_float32_a_stable_training_excuses_no_error(loss: float, by_rounding: float, status: str) -> None:
    ours = outcome([2.0, 1.0, loss], precision="float32")
    failed = compare(dataclasses.replace(RESULT, precision="float32", tolerance=1e-4), ours, REFERENCE)
    assert failed.status == "fail"
    assert excuse(failed, ours, REFERENCE, outcome([2.0, 1.0, by_rounding])).status == status
