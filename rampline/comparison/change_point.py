"""Whether the newest of a series of figures differs from the earlier ones by more than their spread explains.

The test is Student's t for further observations: the mean of the last k figures lies within s * t * sqrt(1/k + 1/n) of
the mean of the n before, s being their standard deviation. It is taken for k = 1, which finds a large change at once,
and for k = 3, which finds a smaller one that stays. t is that of n - 1 degrees of freedom, but of 3 at most: the
machine's load has heavy tails, and a quantile of the normal distribution takes a busy night for a change. All figures
of a night together share the chance of a false alarm, 1 in 100 (Bonferroni).

A change that stays becomes the usual: after three nights, later ones are compared with these. A single night outside is
left out of what later ones are compared with.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from scipy.special import stdtrit

FALSE_ALARMS = 0.01  # of a night, over all of its figures
FEWEST = 3  # figures that have a spread
LASTING = 3  # nights in a row that make a new usual
MOST_COMPARED = 30  # a machine changes within months
MOST_DEGREES = 3  # of freedom
LEAST_SPREAD = 0.001  # equal figures are rounded ones


class State(StrEnum):
    """What a figure is, seen from the earlier ones."""

    TOO_FEW = "too little history"
    USUAL = "as usual"
    CHANGED = "changed"
    STILL_CHANGED = "still changed"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What the newest figure is.

    Attributes:
        state: see `State`; a change is `CHANGED` on its first night alone.
        value: the figure that was judged, or the mean of the last three, if these have changed together.
        is_mean: whether it is that mean.
        usual: mean of the figures that it was compared with; NaN without any.
        low, high: between which it would be as usual; infinite with too few.
        compared: how many figures it was compared with.
    """

    state: State
    value: float
    is_mean: bool = False
    usual: float
    low: float
    high: float
    compared: int

    def rescaled(self, scale: Callable[[float], float]) -> Judgement:
        """The same on another scale, by a function that rises."""
        figures = {name: scale(getattr(self, name)) for name in ("value", "usual", "low", "high")}
        return dataclasses.replace(self, **figures)


def judge_each(values: Iterable[float], figures: int) -> Iterator[Judgement]:
    """What each of these values is, seen from those before it.

    Args:
        values: in the order in which they were measured, on a scale on which their spread is the same everywhere.
        figures: how many are judged a night, at least 1: they share the chance of a false alarm.
    """
    level = FALSE_ALARMS / (2 * figures)
    usual: list[float] = []
    outside: list[float] = []  # the latest in a row, all on one side
    for value in values:
        judgement = _compare([value], usual, level)
        if judgement.state is State.CHANGED:
            stays = bool(outside) and (outside[-1] > judgement.high) == (value > judgement.high)
            outside = [*outside, value] if stays else [value]
            yield dataclasses.replace(judgement, state=State.STILL_CHANGED) if stays else judgement
            if len(outside) == LASTING:
                usual, outside = outside, []
            continue
        usual, outside = [*usual, value][-MOST_COMPARED:], []
        lasting = _compare(usual[-LASTING:], usual[:-LASTING], level)
        if lasting.state is State.CHANGED:
            judgement, usual = lasting, usual[-LASTING:]
        yield judgement


def _compare(newest: Sequence[float], earlier: Sequence[float], level: float) -> Judgement:
    """The mean of the newest values against earlier ones; `level` is the chance of a false alarm."""
    value, compared = statistics.fmean(newest), len(earlier)
    usual, reach = (statistics.fmean(earlier) if earlier else math.nan), math.inf
    if compared >= FEWEST:
        deviation = math.sqrt(math.fsum((figure - usual) ** 2 for figure in earlier) / (compared - 1))
        spread = max(deviation, LEAST_SPREAD) * math.sqrt(1 / len(newest) + 1 / compared)
        reach = spread * _quantile(level / 2, min(compared - 1, MOST_DEGREES))
    low, high = (usual - reach, usual + reach) if earlier else (-math.inf, math.inf)
    state = State.TOO_FEW if compared < FEWEST else State.USUAL if low <= value <= high else State.CHANGED
    return Judgement(
        state=state, value=value, is_mean=len(newest) > 1, usual=usual, low=low, high=high, compared=compared
    )


@cache
def _quantile(share: float, degrees: int) -> float:
    """Above which Student's t is with this chance."""
    return -float(stdtrit(degrees, share))
