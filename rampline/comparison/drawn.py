"""Which runs the charts show: all, or where they are more than there are colours, those that matter most."""

from __future__ import annotations

import dataclasses
from itertools import chain, zip_longest
from typing import Any

import pandas as pd

from rampline.comparison.columns import is_missing
from rampline.comparison.palette import MOST_STYLES
from rampline.comparison.table import Comparison
from rampline.record.metrics import Metric, Output, shown_in


def pick_drawn(comparison: Comparison) -> Comparison:
    """The comparison of at most `MOST_STYLES` of its runs, in their order: more lines no reader can tell apart.

    The reference, then in turn the fastest and the most accurate of those that finished, then the first ones.
    """
    if len(comparison.runs) <= MOST_STYLES:
        return comparison
    rankings = [_rank(comparison, metric) for metric in shown_in(Output.CHART_CHOICE)]
    in_turn = (run for place in zip_longest(*rankings) for run in place if run is not None)
    order = dict.fromkeys(chain([comparison.reference], in_turn, comparison.runs["run"].tolist()))
    chosen = [run for run in order if run][:MOST_STYLES]
    return dataclasses.replace(
        comparison,
        runs=_only(comparison.runs, chosen),
        epochs=_only(comparison.epochs, chosen),
        system=_only(comparison.system, chosen),
    )


def describe_drawn(comparison: Comparison) -> str:
    """What a reader of the charts must know where they leave runs out; else empty."""
    if len(comparison.runs) <= MOST_STYLES:
        return ""
    return (
        f"The charts of this page show {MOST_STYLES} of the {len(comparison.runs)} runs: the reference, and the "
        "fastest and most accurate ones. The tables have all of them."
    )


def _rank(comparison: Comparison, metric: Metric) -> list[str]:
    rows: list[dict[str, Any]] = [row for row in comparison.finished if not is_missing(row[metric.name])]
    ranked = sorted(rows, key=lambda row: row[metric.name], reverse=metric.better == "higher")
    return [row["run"] for row in ranked]


def _only(table: pd.DataFrame, runs: list[str]) -> pd.DataFrame:
    return pd.DataFrame(table[table["run"].isin(runs)]).reset_index(drop=True)
