"""The interval that a median lies in, by the order of the values: it does not matter how they are spread."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate

# The chance to each side that the interval misses: its confidence is 95 %.
MISSED = 1 / 40


def interval_of_median(values: Iterable[float]) -> tuple[float, float]:
    """Bounds of the median of what these values, at least one, are drawn from.

    They hold it with a confidence of 95 % where there are six values or more. Of fewer they are the least and the
    greatest, and hold it with 1 - 2^(1 - n): 50 % for two, 75 % for three, 94 % for five.

    Reference: order statistics, as in `scipy.stats.quantile_test`, which takes a second to import.
    """
    found = sorted(values)
    draws = 2 ** len(found)
    # How many values are below the median is binomial: of all draws so many have 0, at most 1, at most 2 … of them.
    at_most = accumulate(math.comb(len(found), below) for below in range(len(found)))
    left_out = max(0, sum(count / draws <= MISSED for count in at_most) - 1)
    return found[left_out], found[-1 - left_out]
