"""The history of a study: figures of its runs in the executions before, as far as these may be compared.

They may where a run had the same settings, data, machine and workers, and halving cut it short at the same epoch, if at
all; and so it must be for the runs whose weights it starts from. The code and the versions of libraries
may differ: what they change is to be found.

Whether the newest figure differs from the earlier ones by more than their spread explains is Student's t for further
observations: the mean of the last k figures lies within s * t * sqrt(1/k + 1/n) of the mean of the n before, s being
their standard deviation. It is taken for k = 1, which finds a large change at once, and for k = 3, which finds a
smaller one that stays. t is that of n - 1 degrees of freedom, but of 3 at most: the machine's load has heavy tails,
and a quantile of the normal distribution takes a busy night for a change. All figures of a night together share the
chance of a false alarm, 1 in 100 (Bonferroni).

A change that stays becomes the usual: after three nights, later ones are compared with these. A single night outside is
left out of what later ones are compared with.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run
from scipy.special import stdtrit

from rampline.comparison.mlflow_reader import NOT_OF_SET_UP, find_ancestors, run_name, run_row
from rampline.record.metric import Metric, Output
from rampline.record.metrics import shown_in
from rampline.record.units import ACCURACY
from rampline.study.halving import HALVED
from rampline.tracking.experiment import TOLD_TAG
from rampline.tracking.store import find_runs

EXECUTIONS_AT_ONCE = 60  # before this one
MOST_PAGES = 5  # of these: others may lie between those that may be compared
SECONDS_PER_DAY = 86_400
# Settings that are nothing of a set-up, and yet decide accuracy or cost.
DECISIVE = ("repeats", "stop.")
LARGEST_LOGARITHM = 700.0  # of a figure that a float holds
FINISHED = "attributes.status = 'FINISHED'"
FALSE_ALARMS = 0.01  # of a night, over all of its figures
FEWEST = 3  # figures that have a spread
LASTING = 3  # nights in a row that make a new usual
MOST_COMPARED = 30  # a machine changes within months
MOST_DEGREES = 3  # of freedom
LEAST_SPREAD = 0.001  # equal figures are rounded ones


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A figure of a run over the executions that may be compared, the newest last.

    Attributes:
        days: when each execution began, in days after the newest: 0 or less.
        values: of each execution, in the metric's unit, as `judgement` of the newest.
        is_told: whether a flow run of a deployment has told of the change since it began.
    """

    run: str
    metric: Metric
    days: tuple[float, ...]
    values: tuple[float, ...]
    judgement: Judgement
    is_told: bool = False

    @property
    def has_changed(self) -> bool:
        """Whether the newest execution differs: as the first, or while no flow run of a deployment has told of it."""
        state = self.judgement.state
        return state is State.CHANGED or (state is State.STILL_CHANGED and not self.is_told)


class _Conditions(NamedTuple):
    """What a run must share with an earlier one to be compared with it."""

    settings: Mapping[str, str]
    starts_from: str
    data: str
    machines: frozenset[str]
    workers: str  # of each attempt, where an elastic run had not all of them
    cut: str  # after which epoch by halving; empty if not at all


def read_trends(
    client: MlflowClient, parent: Run, children: Sequence[Run], runs: Sequence[Mapping[str, Any]]
) -> tuple[Trend, ...]:
    """The trends of the finished runs that an execution before has finished, too."""
    own = _conditions(children, parent)
    alike: dict[str, list[Run]] = {row["run"]: [] for row in runs if row["status"] == "FINISHED"}
    known = set[str]()
    for page in islice(_executions_before(client, parent), MOST_PAGES):
        for execution, its_runs in page:
            theirs = _conditions(its_runs, execution)
            known |= theirs.keys()
            for run, executions in alike.items():
                if _are_alike(run, own, theirs):
                    executions.insert(0, execution)
        if all(len(executions) >= MOST_COMPARED for executions in alike.values()):
            break
    series = [
        (row, metric, alike[row["run"]])
        for row in runs
        if row["run"] in alike and row["run"] in known
        for metric in shown_in(Output.HISTORY)
        if not pd.isna(row[metric.name])
    ]
    return tuple(_trend(row, metric, executions, parent, len(series)) for row, metric, executions in series)


def _executions_before(client: MlflowClient, parent: Run) -> Iterator[list[tuple[Run, list[Run]]]]:
    """The executions before this one, each with its finished runs, the newest first; page by page."""
    study, began = parent.info.experiment_id, parent.info.start_time
    before = f"tags.`rampline.kind` = 'study' and attributes.start_time < {began}"
    found = find_runs(client, study, before, "DESC", EXECUTIONS_AT_ONCE)
    finished = find_runs(client, study, f"tags.`rampline.kind` = 'run' and {FINISHED}", "DESC", EXECUTIONS_AT_ONCE)
    of_execution: dict[str, list[Run]] = {}
    run = None
    while page := list(islice(found, EXECUTIONS_AT_ONCE)):
        run = run or next(finished, None)
        while run and run.info.start_time >= page[-1].info.start_time:
            of_execution.setdefault(run.data.tags["mlflow.parentRunId"], []).append(run)
            run = next(finished, None)
        yield [(execution, of_execution.get(execution.info.run_id, [])) for execution in page]


def _conditions(runs: Sequence[Run], parent: Run) -> dict[str, _Conditions]:
    """By name of the run; a run that was trained several times counts as its first training."""
    rows = {run_name(run): run_row(run, parent) for run in runs}
    execution = parent.data.tags.get("rampline.execution", "")
    ancestors = find_ancestors(list(rows.values()), parent.data.tags.get("rampline.study", ""), execution)
    found = {}
    for run in runs:
        name = run_name(run)
        # The path of the weights is another one in each execution.
        others = [key for key in run.data.params if key in NOT_OF_SET_UP and not key.startswith(DECISIVE)]
        settings = {key: value for key, value in run.data.params.items() if key not in others}
        settings |= {"model.weights": ""} if name in ancestors else {}
        found[name] = _Conditions(
            settings=settings,
            data=rows[name]["fingerprint"],
            machines=frozenset(machine for _, machine in rows[name]["machines"]),
            workers=rows[name]["workers_of_attempts"],
            starts_from=ancestors.get(name, ""),
            cut=rows[name]["stopped"].partition(":")[0] if HALVED in rows[name]["stopped"] else "",
        )
    return found


def _are_alike(run: str, own: Mapping[str, _Conditions], theirs: Mapping[str, _Conditions]) -> bool:
    if run not in own or run not in theirs:
        return False
    one, other = own[run], theirs[run]
    # A setting that came later is not among those of an earlier run, which had what is its default now.
    same = all(other.settings.get(key, value) == value for key, value in one.settings.items())
    same &= one[1:] == other[1:]
    return same and (not one.starts_from or _are_alike(one.starts_from, own, theirs))


def _trend(row: Mapping[str, Any], metric: Metric, alike: Iterable[Run], parent: Run, figures: int) -> Trend:
    run, name, day = row["run"], metric.name, 1000 * SECONDS_PER_DAY
    told = [(execution, execution.data.metrics.get(f"{name}/{run}")) for execution in alike]
    nights = [(execution, value) for execution, value in told if value is not None and math.isfinite(value)]
    nights.append((parent, float(row[name])))
    values = tuple(value for _, value in nights)
    judgement = judge_newest(values, metric, figures)
    since_change = nights[-1 - judgement.nights_before : -1]
    return Trend(
        run=run,
        metric=metric,
        days=tuple((execution.info.start_time - parent.info.start_time) / day for execution, _ in nights),
        values=values,
        judgement=judgement,
        is_told=any(TOLD_TAG in execution.data.tags for execution, _ in since_change),
    )


def judge_newest(values: Sequence[float], metric: Metric, figures: int) -> Judgement:
    """What the last value of a metric is, seen from the others; see `judge_each`.

    Speeds and costs are compared by their logarithms: a machine that is busy slows everything by a factor.
    """
    by_factor = metric.unit is not ACCURACY and min(values) > 0
    scaled = [math.log(value) for value in values] if by_factor else values
    *_, judged = judge_each(scaled, figures)
    return judged.rescaled(lambda value: math.exp(min(value, LARGEST_LOGARITHM))) if by_factor else judged


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
        state: a change is `CHANGED` on its first night alone.
        value: the figure that was judged, or the mean of the last three, if these have changed together.
        usual: mean of the figures that it was compared with; NaN without any.
        low, high: between which it would be as usual; infinite with too few.
        nights_before: how many figures before this one had changed like it, in a row; of `STILL_CHANGED` alone.
    """

    state: State
    value: float
    is_mean: bool = False
    usual: float
    low: float
    high: float
    compared: int
    nights_before: int = 0

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
            if stays:
                judgement = dataclasses.replace(judgement, state=State.STILL_CHANGED, nights_before=len(outside) - 1)
            yield judgement
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
