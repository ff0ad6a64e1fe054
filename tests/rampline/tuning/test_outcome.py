"""When a candidate counts as faster, which one is taken, and what a person reads of it."""

import dataclasses

import pytest

from rampline.config import RunConfig
from rampline.tuning.outcome import Outcome, best_of, describe_outcome
from rampline.tuning.trial import DOES_NOT_FIT, MEASURED, Rounds, Trial

CONFIG = RunConfig()


def rounds(*ratios: float) -> Rounds:
    return Rounds(before=(100.0,) * len(ratios), after=tuple(100 * ratio for ratio in ratios))


def trial(changes: dict, *ratios: float, group: str = "batch") -> Trial:
    return Trial(group=group, changes=changes, status=MEASURED, rounds=rounds(*ratios))


def outcome(**fields: object) -> Outcome:
    empty = Outcome(
        run="baseline",
        config=CONFIG,
        adopted={},
        before_after=None,
        baseline=(90.0, 100.0, 110.0),
        shown=(),
        trials=(),
        is_compiled=False,
        notes=(),
        seconds=12.0,
    )
    return dataclasses.replace(empty, **fields)


@pytest.mark.parametrize(
    "ratios, is_gain",
    [
        ((1.10, 1.11, 1.12, 1.11, 1.10), True),
        ((1.10, 1.11, 1.12, 1.11, 0.50), True),  # one round that something else disturbed
        ((1.85, 1.86, 1.89, 2.90, 8.79), True),
        ((0.90, 1.05, 1.30, 1.01, 1.20), False),  # median 1.05, half of them more than 0.15 away from it
        ((1.01, 1.01, 1.01, 1.01, 1.01), False),  # well measured, and not worth a setting
        ((0.80, 0.80, 0.80, 0.80, 0.80), False),
    ],
)
def test_a_gain_is_larger_than_the_noise(ratios: tuple[float, ...], is_gain: bool) -> None:
    assert rounds(*ratios).is_gain is is_gain


def test_the_noise_is_three_median_deviations() -> None:
    assert rounds(1.0, 1.1, 1.2, 1.3, 9.0).noise == pytest.approx(0.3)
    assert rounds(1.0, 1.1, 1.2, 1.3, 9.0).ratio == pytest.approx(1.2)


def test_of_equally_fast_ones_the_first_is_taken() -> None:
    slow = trial({"batch.size": 64}, 1.20, 1.20, 1.20, 1.20, 1.20)
    first = trial({"batch.size": 128}, 1.50, 1.50, 1.50, 1.50, 1.50)
    fastest = trial({"batch.size": 256}, 1.48, 1.52, 1.52, 1.54, 1.56)
    assert best_of([slow, first, fastest]) is first
    assert best_of([slow]) is slow
    assert best_of([trial({"xla": True}, 0.9, 0.9, 0.9), Trial(group="xla", changes={"xla": True})]) is None


def test_nothing_faster_is_said_so() -> None:
    text = "\n".join(describe_outcome(outcome(), train_examples=1000))
    assert "before       100 images/s (90.0 to 110)" in text
    assert "after        the same: no setting is faster by more than the noise" in text


def test_a_search_without_a_trial_says_so() -> None:
    assert describe_outcome(outcome(baseline=()), train_examples=1000)[0] == "before       not measured: no trial was"


def test_a_gain_is_shown_with_its_spread_and_its_settings() -> None:
    found = outcome(adopted={"xla": True}, before_after=rounds(1.1, 1.2, 1.3))
    lines = describe_outcome(found, train_examples=1000)
    assert lines[1] == "after        120 images/s (110 to 130): x 1.20 (1.10 to 1.30)"
    assert lines[2] == "             xla false -> true"


def test_a_batch_is_shown_with_what_it_changes() -> None:
    larger = trial({"batch.size": 256, "learning_rate.peak": 0.002}, 1.5, 1.5, 1.5)
    none = Trial(group="batch", changes={"batch.size": 512}, status=DOES_NOT_FIT, reason="killed")
    lines = describe_outcome(outcome(shown=(larger,), trials=(larger, none)), train_examples=1000)
    assert "not free     batch.size 64 -> 256: x 1.50 (1.50 to 1.50); --allow-batch recommends it" in lines
    effect = "global batch 64 -> 256, steps per epoch 16 -> 4, peak learning rate 0.001 -> 0.002"
    assert f"             {effect}, with the square root of the batch (adam)" in lines
    assert "memory       largest per-replica batch that ran: 256 (512 does not fit)" in lines
    assert "does not fit batch.size=512: killed" in lines
    lines = describe_outcome(outcome(shown=(larger,), trials=(larger,), is_compiled=True), train_examples=1000)
    effect = "global batch 64 -> 256, steps per epoch 16 -> 4"
    assert f"             {effect}, its function compiles the model: scale the rate there" in lines
