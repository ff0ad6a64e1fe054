"""The paired test against published figures, and what it lets through."""

from __future__ import annotations

import numpy as np
import pytest

from rampline.record.metric import wilson_interval
from rampline.registry.paired_test import PairedComparison, compare_predictions, difference_interval


def paired(both_right: int, only_old: int, only_new: int, both_wrong: int) -> PairedComparison:
    return PairedComparison(both_right=both_right, only_old=only_old, only_new=only_new, both_wrong=both_wrong)


# Two-sided exact p-values as published; ours is one-sided, which is half of it.
@pytest.mark.parametrize(
    ("counts", "published", "digits"),
    [
        # Fagerland, Lydersen, Laake 2013, BMC Medical Research Methodology 13:91: airway reactivity, complete response.
        ((1, 7, 1, 12), 0.070, 3),
        ((59, 16, 6, 80), 0.052, 3),
        # Armitage and Berry 1994, p. 127, as statsdirect.com/help/chi_square_tests/mat.htm computes it.
        ((20, 12, 2, 16), 0.0129, 4),
    ],
)
def test_p_values_are_the_published_ones(counts: tuple[int, int, int, int], published: float, digits: int) -> None:
    assert round(2 * paired(*counts).p_value, digits) == published


def test_the_interval_is_the_published_one() -> None:
    # Fagerland, Lydersen, Laake 2014, Statistics in Medicine 33, 2850-2875: Newcombe's square-and-add, same examples.
    low, high = paired(1, 7, 1, 12).interval
    assert (round(low, 3), round(high, 3)) == (-0.507, -0.026)


def test_better_and_equal_models_pass() -> None:
    higher, better = paired(90, 2, 8, 0), paired(90, 2, 9, 0)
    assert higher.is_acceptable
    assert better.is_acceptable
    # At most 2 for the old model of 10 disagreements have p=0.055, of 11 p=0.033.
    assert (higher.verdict(), better.verdict()) == ("higher, but not significantly", "better")
    assert paired(90, 5, 5, 0).is_acceptable
    same = paired(9, 0, 0, 1)
    assert (same.p_value, same.difference, same.is_acceptable, same.verdict()) == (1.0, 0.0, True, "as good")
    low, high = same.interval
    assert low < 0 < high


def test_a_significantly_worse_model_is_refused_however_small_the_loss() -> None:
    slightly = paired(9800, 60, 30, 110)
    assert slightly.difference == pytest.approx(-0.003)
    assert (slightly.is_worse, slightly.is_acceptable) == (True, False)


def test_a_lower_model_passes_where_chance_explains_it_and_the_test_is_sharp() -> None:
    lower = paired(340, 8, 5, 7)
    assert (lower.difference < 0, lower.is_worse, lower.is_acceptable) == (True, False, True)
    # 13 disagreements: 10 to 3 has p=0.046, so 9 to 4 is the most that passes.
    assert lower.unseen_loss == pytest.approx(5 / 360)


def test_a_handful_of_images_excuses_nothing() -> None:
    """All of 4 images lost has p=1/16: not significant, and still no reason to trust the model."""
    few = paired(0, 4, 0, 0)
    assert (few.p_value, few.is_worse, few.is_acceptable) == (1 / 16, False, False)
    assert "would not be seen" in few.verdict()


def test_predictions_are_counted_by_who_is_right() -> None:
    labels, old, new = np.array([0, 1, 2, 3, 4]), np.array([0, 1, 0, 0, 4]), np.array([0, 0, 2, 0, 4])
    assert compare_predictions(labels, old, new) == paired(2, 1, 1, 1)


def test_no_examples_are_no_comparison() -> None:
    with pytest.raises(ValueError, match="at least one example"):
        paired(0, 0, 0, 0)


@pytest.mark.parametrize(
    ("right", "examples", "other", "other_examples", "interval"),
    [
        (56, 70, 48, 80, (0.0524, 0.3339)),
        (9, 10, 3, 10, (0.1705, 0.8090)),
        (10, 10, 0, 20, (0.6791, 1.0000)),
    ],
)
def test_intervals_of_newcombe_1998_table_2_method_10(right, examples, other, other_examples, interval):
    found = difference_interval(right / examples, examples, other / other_examples, other_examples)
    assert found == pytest.approx(interval, abs=5e-5)


def test_interval_has_a_width_where_both_are_always_right():
    # The Wilson interval of 100 of 100 begins at 1 / (1 + 1.96**2 / 100) = 0.963.
    assert wilson_interval(1.0, 100) == pytest.approx((0.963, 1.0), abs=5e-4)
    assert difference_interval(1.0, 100, 1.0, 100) == pytest.approx((-0.037, 0.037), abs=5e-4)
