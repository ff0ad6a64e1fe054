"""Curves: what one contender's figures become as something grows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from benchmarks.machine import describe_host, list_versions
from benchmarks.measurement import Contender, Procedure, command_of, is_dropped, spread_of
from rampline.files import write_json


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A table: one line for each value of x, measured by a contender of its own.

    `points` are `(x, contender)` in the order in which they run; `figures` are the keys of the contenders' objects that
    the page shows, in its order, with their titles.
    """

    key: str
    title: str
    x: str
    points: tuple[tuple[float | str, Contender], ...]
    figures: dict[str, str]
    rounds: int = 1
    in_quick: bool = False
    about: str = ""
    target: float | None = None
    """For `target_figure` at the last point; None: reported only."""
    target_figure: str = ""
    at_least: bool = False


def run_curve(curve: Curve, procedure: Procedure) -> dict[str, Any]:
    """Measure a curve, and write its `KEY.json` after each point; a point that fails is left without figures.

    Returns:
        The result, as written.
    """
    measured: dict[str, list[dict[str, Any]]] = {str(x): [] for x, _ in curve.points}
    failed: dict[str, str] = {}
    for number in range(procedure.rounds):
        for x, contender in curve.points:
            if str(x) in failed:
                continue
            outcome = procedure.run(number + 1, contender)
            if is_dropped(outcome):
                failed[str(x)] = outcome.get("error") or outcome["not_measured"]
            else:
                measured[str(x)].append(outcome)
            result = summarise_curve(curve, measured, failed, procedure.command)
            write_json(procedure.folder / f"{curve.key}.json", result)
    return summarise_curve(curve, measured, failed, procedure.command)


def summarise_curve(
    curve: Curve, measured: dict[str, list[dict[str, Any]]], failed: dict[str, str], command: str
) -> dict[str, Any]:
    """The result of a curve: for each x all figures of each round, and the medians."""
    return {
        "key": curve.key,
        "title": curve.title,
        "x": curve.x,
        "command": command,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": describe_host(),
        "versions": list_versions(),
        "points": [
            {
                "x": x,
                "command": command_of(contender),
                "figures": {f: spread_of([{"it": r} for r in measured[str(x)]], "it", f) for f in curve.figures},
                "rounds": measured[str(x)],
                **({"failed": failed[str(x)]} if str(x) in failed else {}),
            }
            for x, contender in curve.points
        ],
    }
