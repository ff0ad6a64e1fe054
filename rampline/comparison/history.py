"""The history of a study: figures of its runs in the executions before, as far as these may be compared.

They may where a run had the same settings, the same data and the same machine, and so had the runs whose weights it
starts from. The code and the versions of libraries may differ: what they change is to be found.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.entities import Run

from rampline.comparison.change_point import Judgement, State, judge_each
from rampline.comparison.mlflow_reader import NOT_OF_SET_UP, find_ancestors, find_runs, run_name, run_row
from rampline.record.metric import Metric, Output
from rampline.record.metrics import shown_in
from rampline.record.units import ACCURACY

MOST_EXECUTIONS = 60  # before this one
SECONDS_PER_DAY = 86_400
# Settings that are nothing of a set-up, and yet decide accuracy or cost.
DECISIVE = ("repeats", "stop.", "cluster.price_per_hour")
LARGEST_LOGARITHM = 700.0  # of a figure that a float holds
FINISHED = "attributes.status = 'FINISHED'"


@dataclass(frozen=True, kw_only=True)
class Trend:
    """A figure of a run over the executions that may be compared, the newest last.

    Attributes:
        run: its name.
        metric: what the figure is.
        days: when each execution began, in days after the newest: 0 or less.
        values: of each execution, in the metric's unit.
        judgement: of the newest value, in the metric's unit.
    """

    run: str
    metric: Metric
    days: tuple[float, ...]
    values: tuple[float, ...]
    judgement: Judgement

    @property
    def has_changed(self) -> bool:
        """Whether the newest execution is the first that differs."""
        return self.judgement.state is State.CHANGED


@dataclass(frozen=True, kw_only=True)
class _Conditions:
    """What a run must share with an earlier one to be compared with it."""

    settings: Mapping[str, str]
    data: str
    machines: frozenset[str]
    starts_from: str


def read_trends(
    client: MlflowClient, parent: Run, children: Sequence[Run], runs: Iterable[Mapping[str, Any]]
) -> tuple[Trend, ...]:
    """The trends of the finished runs that an execution before has finished, too."""
    study, began = parent.info.experiment_id, parent.info.start_time
    before = f"tags.`rampline.kind` = 'study' and attributes.start_time < {began}"
    earlier = list(islice(find_runs(client, study, before, "DESC", MOST_EXECUTIONS), MOST_EXECUTIONS))[::-1]
    if not earlier:
        return ()
    finished = find_runs(client, study, f"tags.`rampline.kind` = 'run' and {FINISHED}", "DESC", MOST_EXECUTIONS)
    of_execution: dict[str, list[Run]] = {}
    for run in takewhile(lambda run: run.info.start_time >= earlier[0].info.start_time, finished):
        of_execution.setdefault(run.data.tags["mlflow.parentRunId"], []).append(run)
    conditions = [_conditions(of_execution.get(execution.info.run_id, []), execution) for execution in earlier]
    own = _conditions(children, parent)
    series = [
        (row, metric, [e for e, theirs in zip(earlier, conditions, strict=True) if _are_alike(row["run"], own, theirs)])
        for row in runs
        if row["status"] == "FINISHED" and any(row["run"] in theirs for theirs in conditions)
        for metric in shown_in(Output.HISTORY)
        if not pd.isna(row[metric.name])
    ]
    return tuple(_trend(row, metric, alike, parent, len(series)) for row, metric, alike in series)


def _conditions(runs: Sequence[Run], parent: Run) -> dict[str, _Conditions]:
    """By name of the run; a run that was trained several times counts as its first training."""
    rows = {run_name(run): run_row(run, parent) for run in runs}
    execution = parent.data.tags.get("rampline.execution", "")
    ancestors = find_ancestors(list(rows.values()), parent.data.tags.get("rampline.study", ""), execution)
    found = {}
    for run in runs:
        name = run_name(run)
        # The path of the weights is another one in each execution.
        settings = {key: value for key, value in run.data.params.items() if _decides(key)}
        settings |= {"model.weights": ""} if name in ancestors else {}
        found[name] = _Conditions(
            settings=settings,
            data=rows[name]["fingerprint"],
            machines=frozenset(machine for _, machine in rows[name]["machines"]),
            starts_from=ancestors.get(name, ""),
        )
    return found


def _decides(setting: str) -> bool:
    return setting.startswith(DECISIVE) or not setting.startswith(NOT_OF_SET_UP)


def _are_alike(run: str, own: Mapping[str, _Conditions], theirs: Mapping[str, _Conditions]) -> bool:
    if run not in own or run not in theirs:
        return False
    one, other = own[run], theirs[run]
    # A setting that came later is not among those of an earlier run, which had what is its default now.
    same = all(other.settings.get(key, value) == value for key, value in one.settings.items())
    same &= (one.data, one.machines, one.starts_from) == (other.data, other.machines, other.starts_from)
    return same and (not one.starts_from or _are_alike(one.starts_from, own, theirs))


def _trend(row: Mapping[str, Any], metric: Metric, alike: Iterable[Run], parent: Run, figures: int) -> Trend:
    run, name, day = row["run"], metric.name, 1000 * SECONDS_PER_DAY
    told = [(execution.info.start_time, execution.data.metrics.get(f"{name}/{run}")) for execution in alike]
    nights = [(began, value) for began, value in told if value is not None and math.isfinite(value)]
    nights.append((parent.info.start_time, float(row[name])))
    values = tuple(value for _, value in nights)
    return Trend(
        run=run,
        metric=metric,
        days=tuple((began - parent.info.start_time) / day for began, _ in nights),
        values=values,
        judgement=judge_newest(values, metric, figures),
    )


def judge_newest(values: Sequence[float], metric: Metric, figures: int) -> Judgement:
    """What the last value of a metric is, seen from the others; see `judge_each`.

    Speeds and costs are compared by their logarithms: a machine that is busy slows everything by a factor.
    """
    by_factor = metric.unit is not ACCURACY and min(values) > 0
    scaled = [math.log(value) for value in values] if by_factor else values
    *_, judged = judge_each(scaled, figures)
    return judged.rescaled(lambda value: math.exp(min(value, LARGEST_LOGARITHM))) if by_factor else judged
