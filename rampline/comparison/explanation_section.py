"""The report's section on where the time went: a step's parts, the run's parts, and the lost part of the speed-up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rampline.comparison.columns import is_missing
from rampline.comparison.drawn import pick_drawn
from rampline.comparison.lost_speedup import Loss, describe_loss, find_losses
from rampline.comparison.scaling_curves import STEADY
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.comparison.stacked import stacked_bars
from rampline.comparison.table import Comparison
from rampline.explain.explanation import NOISE_NOTE, RUN_PARTS, STEP_PARTS, with_share, write_milliseconds
from rampline.record.units import write_ratio

ABOUT = (
    "Measured by probes on the hardware of each run after its last epoch: the input pipeline alone, one cached batch "
    "on the full strategy, the real thing, and the work of one replica in processes of its own, alone and as many at "
    "once. Input is what the pipeline adds to the cached batch. Contention is what replicas cost each other by sharing "
    "processors and memory, also with no strategy between them. Sync is the rest of the cached step: the all-reduce, "
    "or the variables on parameter servers. The fixed cost is the part of one replica's step that half a batch does "
    "not halve: launching operations, Python, the update. The probes give the proportions, the run its usual step."
)


def make_explanation_section(comparison: Comparison) -> Section | None:
    """The section, or None where no run was probed."""
    rows = [row for row in comparison.rows if not is_missing(row["step_ms_compute"])]
    if not rows:
        return None
    steps = {row["run"]: {key: row[f"step_ms_{key}"] for key, _ in STEP_PARTS} for row in rows}
    runs = {row["run"]: {key: _number(row[f"{key}_seconds"]) for key, _ in RUN_PARTS} for row in rows}
    losses, drawn = list(find_losses(comparison)), set(pick_drawn(comparison).runs["run"])
    return Section(
        id="explanation",
        title="Where the time went",
        sentences=(*_best_loss(losses), *_drifted(rows)),
        tables=(
            _verdicts(rows),
            _table("One training step, milliseconds", STEP_PARTS, steps, _noise(rows)),
            *([_losses(losses)] if losses else []),
            _table("The whole run, seconds", RUN_PARTS, runs, {}),
        ),
        charts=(
            Chart(
                title="One training step",
                caption="Milliseconds per update of the weights, by what they went into.",
                svg=stacked_bars(
                    [bar for bar in steps.items() if bar[0] in drawn], STEP_PARTS, "milliseconds per step", "step-parts"
                ),
            ),
            Chart(
                title="The whole run",
                caption="Seconds from the start of the roles to the end of training.",
                svg=stacked_bars([bar for bar in runs.items() if bar[0] in drawn], RUN_PARTS, "seconds", "run-parts"),
            ),
        ),
        about=ABOUT,
    )


def _best_loss(losses: Sequence[Loss]) -> Iterator[str]:
    if losses:
        yield describe_loss(max(losses, key=lambda loss: loss.speedup))


def _drifted(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Runs for which the machine was not the same while they trained and while they were probed."""
    for row in rows:
        slowdown = row["probe_slowdown"]
        if not is_missing(slowdown) and not 1 / STEADY <= slowdown <= STEADY:
            busy = "busier" if slowdown > 1 else "idler"
            yield (
                f"{row['run']}: its steps took {write_ratio(slowdown)} the time of its probes, so the machine was "
                f"{busy} while it trained. Its parts are in the proportions of the probes."
            )


def _verdicts(rows: list[dict[str, Any]]) -> ReportTable:
    return ReportTable(
        title="What holds each run back",
        head=("run", "verdict"),
        rows=tuple((row["run"], row["verdict"]) for row in rows),
        numeric=(False, False),
    )


def _losses(losses: Sequence[Loss]) -> ReportTable:
    return ReportTable(
        title="What each scaled run loses against ideal scaling, milliseconds per step",
        head=("run", "speed-up", "ideal", "step", "ideal step", *(words for _, words in STEP_PARTS)),
        rows=tuple(
            (
                loss.run,
                write_ratio(loss.speedup),
                write_ratio(loss.ideal_speedup),
                write_milliseconds(loss.step_ms),
                write_milliseconds(loss.ideal_ms),
                *(write_milliseconds(loss.parts[key]) for key, _ in STEP_PARTS),
            )
            for loss in losses
        ),
        numeric=(False, *(True for _ in range(4 + len(STEP_PARTS)))),
        note="The parts add up to the step less the ideal step; a negative one is a gain.",
    )


def _noise(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, float]]:
    """Of each run that has any, the parts of its step that are not told apart from noise."""
    noise = {row["run"]: {key: row[f"step_ms_{key}_noise"] for key, _ in STEP_PARTS} for row in rows}
    return {run: parts for run, parts in noise.items() if not all(map(is_missing, parts.values()))}


def _table(
    title: str,
    parts: tuple[tuple[str, str], ...],
    rows: Mapping[str, Mapping[str, float]],
    noise: Mapping[str, Mapping[str, float]],
) -> ReportTable:
    return ReportTable(
        title=title,
        head=("run", *(words for _, words in parts), "total"),
        rows=tuple(
            (
                run,
                *(with_share(row[key], row, noise.get(run, {}).get(key, math.nan)) for key, _ in parts),
                write_milliseconds(sum(row.values())),
            )
            for run, row in rows.items()
        ),
        numeric=(False, *(True for _ in parts), True),
        note=NOISE_NOTE if noise else "",
    )


def _number(value: Any) -> float:
    return 0.0 if is_missing(value) else float(value)
