"""What a metric is: where it is told, its unit and words, how epochs become one figure, and where it is shown.

No TensorFlow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from itertools import accumulate

from rampline.record.units import NUMBER, Unit

# The chance to each side that the interval misses: its confidence is 95 %.
MISSED = 1 / 40
# The quantile of the normal distribution above which that is.
Z = 1.959964


class Source(StrEnum):
    """Where a metric is told first."""

    EPOCH = "event `epoch`"
    FORECAST = "`forecast.json`"
    RESULT = "`result.json`"
    EVALUATION = "`evaluation.json`"
    EXPLANATION = "`explanation.json`"
    PARITY = "`parity.json`"
    COMPARISON = "the comparison"


class Summary(StrEnum):
    """How the epochs of a run become one figure of its row in the comparison."""

    BEST = "best epoch"
    BEST_EPOCH = "number of the best epoch"
    LAST = "last epoch"
    MEDIAN = "median without the first epoch of each attempt"
    MIN = "smallest without the first epoch of each attempt"
    MAX = "largest without the first epoch of each attempt"


class Output(StrEnum):
    """Places that show some of the metrics, in an order of their own."""

    EPOCH_LINE = "the line of an epoch in logs and terminal"
    EPOCH_PAGE = "the table of epochs on a flow run's page"
    TABLE = "the table of runs in terminal, report and MLflow note"
    STUDY_RUN = "the study's MLflow run, as METRIC/RUN"
    HISTORY = "the trends over executions, which need STUDY_RUN"
    VIEW_COLUMN = "the columns of MLflow's view"
    VIEW_BAR = "the bar charts of MLflow's view"
    VIEW_BY_TIME = "the line charts by wall clock of MLflow's view"
    VIEW_BY_EPOCH = "the line charts by epoch of MLflow's view"
    VIEW_PARALLEL = "the parallel coordinates of MLflow's view"
    BEST_MARK = "the report marks the best run"
    CHART_CHOICE = "the best runs are those that crowded charts show"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: in MLflow, `comparison.csv` and study files; in events too, unless `told_as` says otherwise.
        about: what it is, one sentence.
        source: where it is told first; `Source.EPOCH` for each epoch, the others once per run.
        unit: with the way to write it.
        heading: of its column; its name in words by default.
        better: `higher` or `lower`; empty where neither is.
        told_as: its name in its source; dots lead into nested objects.
        told_in_steps: its name in `progress` events, which tell it of the epoch so far; empty for none.
        logged: whether MLflow has it on the run.
        in_csv: whether `comparison.csv` has it, if it is a figure of the run.
        of: the metric of the epochs that `summary` is of; this one by default.
        summary: how the comparison makes it from epochs; `None` for a figure that is read as it is.
        charted: whether the comparison reads its epochs for charts.
        tensorboard: `RUN/TAG` in TensorBoard; empty for none.
        line: its words in the line of an epoch, with a format for the figure.
        rank: importance in the table: 0 is always shown, and a narrow terminal drops the highest first.
        under: the metric under whose figure the report writes this one, small.
        note: what the report writes there, with `{}` for the figure.
        is_optional: whether the table has its column only where a run has the figure.
        sum_of: the metric that this one sums over a run and those whose weights it starts from; empty for none.
        shown: outputs that show it, each with its place there; the smallest is first.
    """

    name: str
    about: str
    source: Source
    _: KW_ONLY
    unit: Unit = NUMBER
    heading: str = ""
    better: str = ""
    told_as: str = ""
    told_in_steps: str = ""
    logged: bool = True
    in_csv: bool = True
    of: str = ""
    summary: Summary | None = None
    charted: bool = False
    tensorboard: str = ""
    line: str = ""
    rank: int = 9
    under: str = ""
    note: str = "{}"
    is_optional: bool = False
    sum_of: str = ""
    shown: Mapping[Output, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        defaults = {"heading": self.name.replace("_", " "), "told_as": self.name, "of": self.name}
        for attribute, value in defaults.items():
            object.__setattr__(self, attribute, getattr(self, attribute) or value)

    @property
    def is_of_run(self) -> bool:
        """Whether the comparison has one figure of it for each run."""
        return self.source is not Source.EPOCH or self.summary is not None

    @property
    def is_read(self) -> bool:
        """Whether the comparison reads its figure of a run from MLflow, instead of making it itself."""
        return self.is_of_run and self.summary is None and self.source is not Source.COMPARISON

    def write_line(self, value: float | None) -> str:
        """Its words in the line of an epoch; a figure that is not there is a hyphen."""
        return self.line.format(value) if value is not None else re.sub(r"\{[^}]*\}", "-", self.line)


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


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % score interval of one share (Wilson 1927)."""
    middle = share + Z**2 / (2 * count)
    width = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    scale = 1 + Z**2 / count
    # Rounding must not lead beyond 0 and 1.
    return max((middle - width) / scale, 0.0), min((middle + width) / scale, 1.0)
