"""The parity check tells rounding from errors: real strategies, and steps with errors put in."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf
from role_functions import reset_keras
from runs import make_config, with_recipe

import rampline.training.state as training_state
import rampline.training.synchronous as synchronous_steps
from rampline.config import LearningRateConfig, OptimizerConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.jobs.tf_config import ALONE
from rampline.parity import check_process
from rampline.parity.check import ParityResult
from rampline.parity.check_process import check_steps, skips_together
from rampline.training.optimizers import LossScaleOptimizer
from rampline.training.step import make_train_step
from rampline.training.strategy import make_strategy

Check = Callable[..., ParityResult]


def replicas() -> int:
    """Inside a step."""
    return tf.distribute.get_replica_context().num_replicas_in_sync


def per_replica_count(state, **settings):
    """Divides by the examples of the replica's own share and averages: right only where all shares are equal."""
    step = make_train_step(state, **settings)
    return lambda batch: step({**batch, "global_examples": tf.reduce_sum(batch["weights"]) * replicas()})


def summed(state, **settings):
    """Sums the replicas' mean gradients instead of averaging them."""
    step = make_train_step(state, **settings)
    return lambda batch: step({**batch, "global_examples": batch["global_examples"] / replicas()})


def full_batch(state, **settings):
    """Divides by the global batch size in a partial last batch too, as `compute_average_loss` does."""
    step = make_train_step(state, **settings)
    wrong = tf.constant(BATCH, tf.float32)
    return lambda batch: step({**batch, "global_examples": wrong} if replicas() > 1 else batch)


WRONG = (per_replica_count, summed, full_batch)
# Gives the two replicas shares of 14 and 13; of 120 examples 12 are left for the last batch.
BATCH = 27


@pytest.fixture
def check(digits: PreparedDataset, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """`check(config, make_step)`: the result of the check in this process, with that step."""

    def run(config: RunConfig, make_step: Callable = make_train_step) -> ParityResult:
        monkeypatch.setattr(synchronous_steps, "make_train_step", make_step)
        return check_steps(config, ALONE, digits, make_strategy(config))

    yield run
    reset_keras()


@pytest.fixture
def one_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """One replica trains a run once: all of `WRONG` are right there."""
    train_steps, trained = check_process.train_steps, dict[tuple[str, float], check_process.Outcome]()

    def train(run: RunConfig, *others: Any, shake: float = 0.0) -> check_process.Outcome:
        strategy, key = others[-1], (repr(run), shake)
        if strategy.num_replicas_in_sync > 1:
            return train_steps(run, *others, shake=shake)
        if key not in trained:
            trained[key] = train_steps(run, *others, shake=shake)
        return trained[key]

    monkeypatch.setattr(check_process, "train_steps", train)


@pytest.mark.long
@pytest.mark.parametrize("optimizer, rate", [("sgd", 0.02), ("adam", 0.001)])
@pytest.mark.usefixtures("one_reference")
def test_errors_are_far_above_rounding(optimizer: str, rate: float, check: Check) -> None:
    config = make_config("mirrored", batch=BATCH, replicas=2, virtual_devices=2)
    settings = {"optimizer": OptimizerConfig(name=optimizer), "learning_rate": LearningRateConfig(peak=rate)}
    config = dataclasses.replace(config, **settings)
    right = check(config)
    assert (right.status, right.precision, right.first_step, right.steps) == ("pass", "float64", 0, 10)
    assert_falling(right)
    assert_equal(right)
    for make_step in WRONG:
        result = check(config, make_step)
        assert result.status == "fail", make_step
        assert result.max_weight_diff is not None
        assert result.max_weight_diff > 1e-6, make_step
        assert "the replicas train differently" in result.reason


def test_model_fit_trains_as_the_loop_on_one_replica(check: Check) -> None:
    # Shares of 14 and 15; of 120 examples 2 are left for the last batch, and two replicas get none.
    config = make_config("mirrored", model="parity_models:penalised", batch=59, replicas=4, virtual_devices=4)
    # One replica alone would have a peak below the floor.
    rate = LearningRateConfig(schedule="ramp", start=0.0, peak=0.005, floor=0.01, ramp_epochs=1, scale_with="replicas")
    result = check(dataclasses.replace(config, engine="fit", learning_rate=rate))
    assert (result.status, result.precision, result.notes) == ("pass", "float64", ())
    assert_falling(result)
    assert_equal(result)


LONG = pytest.mark.long
RECIPES = [
    pytest.param("loop", "parity_models:penalised", id="study"),
    pytest.param("loop", "compiled_models:with_everything", id="compiled", marks=LONG),
    pytest.param("fit", "parity_models:penalised", id="study, fit", marks=LONG),
    pytest.param("fit", "compiled_models:with_everything", id="compiled, fit", marks=LONG),
]


@pytest.mark.parametrize("engine, model", RECIPES)
def test_a_recipe_trains_as_on_one_replica(engine: str, model: str, check: Check) -> None:
    # Of 120 examples 2 are left for the last batch, and a replica or two get none. In Model.fit Keras rounds a third.
    replicas = 3 if engine == "loop" else 4
    config = make_config("mirrored", model=model, batch=59, replicas=replicas, virtual_devices=replicas)
    config = with_recipe(config)
    result = check(dataclasses.replace(config, engine=engine))
    assert (result.status, result.precision) == ("pass", "float64")
    assert_falling(result)
    assert_equal(result)


@pytest.mark.long
def test_gradients_that_are_clipped_before_they_are_summed_fail(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_state, "clip_the_sum", lambda _: None)
    result = check(with_recipe(make_config("mirrored", batch=59, replicas=2, virtual_devices=2)))
    assert result.status == "fail"
    assert (result.max_weight_diff or 0) > 1e-4


@LONG
def test_a_replica_with_other_examples_fails_in_model_fit(check: Check) -> None:
    config = make_config("mirrored", model="parity_models:with_other_examples", replicas=2, virtual_devices=2)
    result = check(dataclasses.replace(config, engine="fit"))
    assert result.status == "fail"
    assert (result.max_loss_diff or 0) > 1e-3


@pytest.mark.long
def test_a_model_that_insists_on_float32_is_compared_with_what_float32_allows(check: Check) -> None:
    config = make_config("mirrored", model="small_models:smooth", replicas=2, virtual_devices=2)
    result = check(config)
    assert (result.status, result.precision, result.tolerance) == ("pass", "float32", 1e-4)
    assert 0 < (result.max_weight_diff or 0) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("optimizer, rate", [("sgd", 0.02), ("adam", 0.01)])
@pytest.mark.usefixtures("one_reference")
def test_errors_are_far_above_rounding_in_float32(optimizer: str, rate: float, check: Check) -> None:
    """Adam scales summed gradients down again, so that they show late, and its rate lets rounding grow meanwhile."""
    config = make_config("mirrored", model="small_models:smooth_in_float32", batch=BATCH, replicas=2, virtual_devices=2)
    settings = {"optimizer": OptimizerConfig(name=optimizer), "learning_rate": LearningRateConfig(peak=rate)}
    config = dataclasses.replace(config, **settings)
    right = check(config)
    assert (right.status, right.precision) == ("pass", "float32")
    assert 0 < (right.max_weight_diff or 0) < 1e-5
    for make_step in WRONG:
        assert check(config, make_step).status == "fail", make_step


def test_a_loss_that_is_not_finite_fails_with_the_step(check: Check) -> None:
    config = make_config("mirrored", model="small_models:exploding", replicas=2, virtual_devices=2)
    result = check(config)
    assert result.status == "fail"
    assert "on one replica: lower learning_rate.peak" in result.reason
    assert None in result.losses


@pytest.mark.parametrize(
    ("optimizer", "together"),
    [
        pytest.param(LossScaleOptimizer, True, marks=LONG),
        (keras.mixed_precision.LossScaleOptimizer, False),
    ],
)
@pytest.mark.usefixtures("check")
def test_replicas_that_do_not_skip_a_step_together_are_found(
    optimizer: type, together: bool, digits: PreparedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("mirrored", model="parity_models:with_random_parts", replicas=2, virtual_devices=2)
    monkeypatch.setattr(training_state, "LossScaleOptimizer", optimizer)
    assert skips_together(config, ALONE, digits, make_strategy(config)) == together


def assert_falling(result: ParityResult) -> None:
    first, last = result.losses[0], result.losses[-1]
    assert first is not None
    assert last is not None
    assert last < first


def assert_equal(result: ParityResult) -> None:
    assert result.max_loss_diff is not None
    assert result.max_weight_diff is not None
    assert max(result.max_loss_diff, result.max_weight_diff) < 1e-12
