"""Curves: what one contender's figures become as something grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_host, list_versions
from benchmarks.measurement import RESULTS, Contender, command_of, spread_of
from benchmarks.process import ContenderError, run_contender
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


def run_curve(
    curve: Curve,
    *,
    rounds: int,
    folder: Path = RESULTS,
    command: str = "python -m benchmarks",
    report: Callable[[str], None] = print,
    progress: Callable[[int, Contender], None] = lambda number, contender: None,
    on_duration: Callable[[Contender, float], None] = lambda contender, seconds: None,
) -> dict[str, Any]:
    """Measure a curve, and write `folder/KEY.json` after each point; a point that fails is left without figures.

    Returns:
        The result, as written.
    """
    measured: dict[str, list[dict[str, Any]]] = {str(x): [] for x, _ in curve.points}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for x, contender in curve.points:
            if str(x) in failed:
                continue
            progress(number + 1, contender)
            try:
                figures, seconds = run_contender(contender.arguments, contender.environment, contender.timeout_seconds)
            except ContenderError as error:
                report(f"{curve.key} at {x} failed: {error} (repeat with: {command_of(contender)})")
                failed[str(x)], seconds = str(error), error.seconds
            else:
                if "not_measured" in figures:
                    failed[str(x)] = figures["not_measured"]
                else:
                    measured[str(x)].append({**figures, "wall_seconds": round(seconds, 2)})
            on_duration(contender, seconds)
            write_json(folder / f"{curve.key}.json", summarise_curve(curve, measured, failed, command))
    return summarise_curve(curve, measured, failed, command)


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
