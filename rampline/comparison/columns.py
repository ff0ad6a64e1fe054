"""The columns of the comparison table, and how figures are written: the same in terminal, report and MLflow note."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from rampline.comparison.table import Comparison

NONE = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the table.

    Attributes:
        key: name of the figure in `Comparison.runs`.
        title: heading.
        write: the figure as text; a missing one is a dash.
        rank: importance; 0 is always shown, and a narrow terminal drops the highest first.
        numeric: whether it is aligned right.
        under: key of the column under whose figure the report writes this one, small, to save width.
        note: what the report writes there, with `{}` for the figure.
    """

    key: str
    title: str
    write: Callable[[Any], str]
    rank: int
    numeric: bool = True
    under: str = ""
    note: str = "{}"

    def text(self, row: Mapping[str, Any]) -> str:
        """The figure of one row as text."""
        value = row.get(self.key)
        return NONE if is_missing(value) else self.write(value)


def is_missing(value: Any) -> bool:
    """Whether a figure is not there: None, NaN, pandas' NA, infinite or an empty text."""
    return bool(pd.isna(value)) or value == "" or (isinstance(value, float) and math.isinf(value))


def write_accuracy(value: float) -> str:
    """A share of correct answers, as Keras and MLflow write it: `0.9778`."""
    return f"{value:.4f}"


def write_quantity(value: float) -> str:
    """Seconds or images/s with three digits or more: `3.42`, `42.0`, `5,210`."""
    if abs(value) < 10:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"


def write_ratio(value: float) -> str:
    """A factor with its multiplication sign: `1.31x`."""
    return f"{value:.2f}{TIMES}"


def write_percent(value: float) -> str:
    """`66 %`."""
    return f"{100 * value:.0f} %"


def write_dollars(value: float) -> str:
    """`$0.0312` below a dollar, `$12.40` above."""
    return f"${value:.4f}" if abs(value) < 1 else f"${value:,.2f}"


def write_duration(seconds: float) -> str:
    """`42.0 s` below two minutes, `34.9 min` below two hours, `3.50 h` above."""
    if seconds < 120:
        return f"{write_quantity(seconds)} s"
    return f"{write_quantity(seconds / 60)} min" if seconds < 7200 else f"{write_quantity(seconds / 3600)} h"


def write_count(value: float) -> str:
    """`1,437`."""
    return f"{int(value):,}"


WRITE_METRIC = {
    **{"accuracy": write_accuracy, "seconds": write_quantity, "usd": write_dollars},
    **{"speedup": write_ratio, "efficiency": write_percent, "epoch": write_count},
}
# Our figure for a published one of another name: "validation accuracy" in a paper is that after the last epoch.
OURS = {"val_accuracy": "last_val_accuracy"}


def make_columns(comparison: Comparison) -> list[Column]:
    """The columns of this comparison's table: cost and published figures (beside ours) only where there are any."""
    columns, metrics = _own_columns(comparison), comparison.published_metrics
    keys = {column.key for column in columns}
    missing = [metric for metric in metrics if OURS.get(metric, metric) not in keys and metric in comparison.runs]
    titles = {"train_accuracy": "train acc", "epoch_seconds": "epoch s"}
    ours = [
        Column(key=metric, title=titles.get(metric, _plain(metric)), write=_writer(metric), rank=9)
        for metric in missing
    ]
    return [*columns[:-1], *ours, *(_published(metric) for metric in metrics), columns[-1]]


def _own_columns(comparison: Comparison) -> list[Column]:
    priced = any(not is_missing(row["cost_usd"]) for row in comparison.rows)
    complete = len(comparison.finished) == len(comparison.rows)
    chained = any(row["starts_from"] for row in comparison.rows)
    score = _score_title(set(comparison.runs["test_split"]))
    return [
        Column(key="run", title="run", write=str, rank=0, numeric=False),
        Column(key="strategy", title="strategy", write=_plain, rank=7, numeric=False),
        Column(key="engine", title="engine", write=str, rank=9, numeric=False, under="strategy"),
        Column(key="replicas", title="replicas", write=write_count, rank=3),
        Column(key="global_batch_size", title="batch", write=write_count, rank=9),
        Column(
            key="per_replica_batch_size",
            title="replica batch",
            write=write_count,
            rank=11,
            under="global_batch_size",
            note="{} / replica",
        ),
        Column(key="test_accuracy", title=score, write=write_accuracy, rank=1),
        Column(key="best_val_accuracy", title="best val", write=write_accuracy, rank=8),
        Column(
            key="best_epoch", title="best epoch", write=write_count, rank=10, under="best_val_accuracy", note="epoch {}"
        ),
        Column(key="last_val_accuracy", title="last val", write=write_accuracy, rank=10),
        Column(key="train_seconds", title="train s", write=write_quantity, rank=4),
        Column(
            key="train_seconds_vs_reference",
            title="vs ref",
            write=write_ratio,
            rank=13,
            under="train_seconds",
            note="{} ref.",
        ),
        *([_in_all("train_seconds", "train s", write_quantity)] if chained else []),
        Column(key="wall_seconds", title="wall s", write=write_quantity, rank=6),
        *([_in_all("wall_seconds", "wall s", write_quantity)] if chained else []),
        *([Column(key="cost_usd", title="cost", write=write_dollars, rank=4)] if priced else []),
        *([_in_all("cost_usd", "cost", write_dollars)] if priced and chained else []),
        Column(key="images_per_second", title="images/s", write=write_quantity, rank=2),
        Column(key="speedup", title="speed-up", write=write_ratio, rank=1),
        Column(
            key="scaling_efficiency",
            title="efficiency",
            write=write_percent,
            rank=5,
            under="speedup",
            note="{} of ideal",
        ),
        Column(key="status", title="status", write=str.lower, rank=12 if complete else 1, numeric=False, under="run"),
    ]


def _in_all(key: str, title: str, write: Callable[[Any], str]) -> Column:
    """The figure with those of the runs that a run starts from; only such a run has it."""
    return Column(key=f"{key}_in_all", title=f"{title} in all", write=write, rank=11, under=key, note="{} in all")


def _published(metric: str) -> Column:
    return Column(
        key=f"published_{metric}",
        title=f"published {_plain(metric)}",
        write=_writer(metric),
        rank=9,
        under=OURS.get(metric, metric),
        note="publ. {}",
    )


def _writer(metric: str) -> Callable[[Any], str]:
    return WRITE_METRIC.get(metric.rpartition("_")[2], write_quantity)


def _score_title(splits: set[str]) -> str:
    """Data without a test split is scored on the validation split: the heading must not claim otherwise."""
    if "validation" not in splits:
        return "test acc"
    return "test/val acc" if "test" in splits else "val acc"


def _plain(name: str) -> str:
    return name.replace("_", " ")
