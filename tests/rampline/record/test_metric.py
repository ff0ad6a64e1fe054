"""The interval of a median, against figures that are worked out by hand, and against SciPy's."""

import random

import pytest
from scipy.stats import quantile_test

from rampline.record.metric import interval_of_median


def test_an_interval_of_few_values_is_all_that_they_range_over() -> None:
    assert interval_of_median([3.0]) == (3.0, 3.0)
    assert interval_of_median([3.0, 1.0]) == (1.0, 3.0)
    assert interval_of_median([1.0, 2.0, 3.0, 4.0, 5.0]) == (1.0, 5.0)


def test_of_ten_values_the_least_and_the_greatest_are_left_out() -> None:
    # Binomial(10, 1/2) is outside with 2 * 11 / 1024.
    assert interval_of_median([float(n) for n in range(10)]) == (1.0, 8.0)


@pytest.mark.parametrize("count", [6, 7, 8, 9, 16, 17, 35, 60])
def test_the_interval_is_that_of_scipy(count: int) -> None:
    draw = random.Random(count)
    values = [draw.gauss() for _ in range(count)]
    expected = quantile_test(values, q=0, p=0.5).confidence_interval(0.95)
    assert interval_of_median(values) == (expected.low, expected.high)


def test_of_thousands_of_values_few_are_in_it() -> None:
    # The 31 to each side of the middle: 0.98 times the root of 1000.
    low, high = interval_of_median(range(1000))
    assert (low, high) == (468, 531)
