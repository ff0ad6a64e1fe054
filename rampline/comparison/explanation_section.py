"""The report's section on where the time went: a step's parts, the run's parts, and the lost part of the speed-up.

The ideal step of a run with N times the reference's replicas takes the reference's time per example divided by N. What
the real step takes longer is the sum, over the parts, of the run's part less the reference's part scaled the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rampline.comparison.charts import drawn_runs, stacked_bars
from rampline.comparison.runs import Comparison, is_missing, is_scaled
from rampline.comparison.scaling_curves import STEADY
from rampline.comparison.section import Chart, ReportTable, Section
from rampline.explain.explanation import NOISE_NOTE, RUN_PARTS, STEP_PARTS, table_of_parts, write_milliseconds
from rampline.record.units import write_ratio

ABOUT = (
    "Measured by probes on the hardware of each run after its last epoch: the input pipeline alone, one cached batch "
    "on the full strategy, the real thing, and the work of one replica in processes of its own, alone and as many at "
    "once. Input is what the pipeline adds to the cached batch. Contention is what replicas cost each other by sharing "
    "processors and memory, also with no strategy between them. Sync is the rest of the cached step: the all-reduce, "
    "or the variables on parameter servers. The fixed cost is the part of one replica's step that half a batch does "
    "not halve: launching operations, Python, the update. The probes give the proportions, the run its usual step."
)
WORDS = {
    "contention": "replicas sharing the hardware",
    "sync": "keeping the replicas in step",
    "other": "fixed cost that more replicas do not share out",
    "input": "the input pipeline",
    "compute": "less efficient smaller batches",
}
# Smaller parts of the loss are not worth a word.
SMALLEST_SHARE = 0.03


def make_explanation_section(comparison: Comparison) -> Section | None:
    """The section, or None where no run was probed."""
    rows = [row for row in comparison.rows if not is_missing(row["step_ms_compute"])]
    if not rows:
        return None
    steps = {row["run"]: {key: row[f"step_ms_{key}"] for key, _ in STEP_PARTS} for row in rows}
    runs = {row["run"]: {key: _number(row[f"{key}_seconds"]) for key, _ in RUN_PARTS} for row in rows}
    losses = list(find_losses(comparison))
    best = [max(losses, key=lambda loss: loss.speedup)] if losses else []
    return Section(
        id="explanation",
        title="Where the time went",
        sentences=(*map(describe_loss, best), *_drifted(rows)),
        tables=(
            ReportTable(
                title="What holds each run back",
                head=("run", "verdict"),
                rows=tuple((row["run"], row["verdict"]) for row in rows),
                numeric=(False, False),
            ),
            _table("One training step, milliseconds", STEP_PARTS, steps, _noise_by_run(rows)),
            *([_losses(losses)] if losses else []),
            _table("The whole run, seconds", RUN_PARTS, runs, {}),
        ),
        charts=tuple(_charts(steps, runs, drawn_runs(comparison))),
        about=ABOUT,
    )


def _charts(
    steps: Mapping[str, Mapping[str, float]], runs: Mapping[str, Mapping[str, float]], drawn: Sequence[str]
) -> Iterator[Chart]:
    """None where no run that is drawn was probed."""
    of_step = "Milliseconds per update of the weights, by what they went into."
    of_run = "Seconds from the start of the roles to the end of training."
    for title, caption, parts, unit, rows in (
        ("One training step", of_step, STEP_PARTS, "milliseconds per step", steps),
        ("The whole run", of_run, RUN_PARTS, "seconds", runs),
    ):
        if bars := [(run, rows[run]) for run in rows if run in drawn]:
            spec, legend = stacked_bars(bars, parts, unit)
            yield Chart(title=title, caption=caption, spec=spec, legend=legend)


def _drifted(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Runs for which the machine was not the same while they trained and while they were probed."""
    for row in rows:
        slowdown = row["probe_slowdown"]
        if not is_missing(slowdown) and not 1 / STEADY <= slowdown <= STEADY:
            why = f"so the machine was {'busier' if slowdown > 1 else 'idler'} while it trained"
            why = "but it had not all its workers all the time" if row["workers_of_attempts"] else why
            yield (
                f"{row['run']}: its steps took {write_ratio(slowdown)} the time of its probes, {why}. Its parts are "
                "in the proportions of the probes."
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
        note="The parts add up to the step less the ideal step; a negative one is a gain.",
    )


def _noise_by_run(rows: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, float]]:
    """Of each run that has any, the parts of its step that are not told apart from noise."""
    noise = {row["run"]: {key: row[f"step_ms_{key}_noise"] for key, _ in STEP_PARTS} for row in rows}
    return {run: parts for run, parts in noise.items() if not all(map(is_missing, parts.values()))}


def _table(
    title: str,
    parts: tuple[tuple[str, str], ...],
    rows: Mapping[str, Mapping[str, float]],
    noise: Mapping[str, Mapping[str, float]],
) -> ReportTable:
    head, *texts = table_of_parts(parts, rows, noise)
    return ReportTable(title=title, head=head, rows=tuple(texts), note=NOISE_NOTE if noise else "")


def _number(value: Any) -> float:
    return 0.0 if is_missing(value) else float(value)


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a scaled run loses against ideal scaling of the reference.

    Attributes:
        ideal_speedup: replicas of the run / replicas of the reference.
        speedup: by the probed steps: images per second of the run / those of the reference.
        parts: milliseconds by part, which add up to `step_ms` - `ideal_ms`; negative where the run does better.
        noise: milliseconds by part, of the run and of the reference.
    """

    run: str
    ideal_speedup: float
    speedup: float
    ideal_ms: float
    step_ms: float
    parts: dict[str, float]
    noise: dict[str, float]


def find_losses(comparison: Comparison) -> Iterator[Loss]:
    """One for each run that was probed and scales the training of the reference, which was probed too."""
    rows = [row for row in comparison.finished if not is_missing(row["step_ms_compute"])]
    reference = comparison.reference_row
    if reference is None or is_missing(reference["step_ms_compute"]):
        return
    for row in rows:
        # The probes were made where the run ended.
        if is_scaled(row, reference) and row["machines"][-1][1] == reference["machines"][-1][1]:
            yield _loss(row, reference)


def describe_loss(loss: Loss) -> str:
    """One sentence: the speed-up, the ideal one, and what the difference went into."""
    lost = loss.step_ms - loss.ideal_ms
    reached, best = write_ratio(loss.speedup), write_ratio(loss.ideal_speedup)
    if lost <= SMALLEST_SHARE * loss.step_ms:
        return f"{loss.run}: {reached} where the ideal is {best}. It scales ideally."
    told = [
        f"{write_milliseconds(min(ms, lost))} ms to {WORDS[key]}"
        for key, ms in sorted(loss.parts.items(), key=lambda part: part[1], reverse=True)
        if ms > max(SMALLEST_SHARE * lost, loss.noise.get(key, 0.0))
    ]
    step, ideal = write_milliseconds(loss.step_ms), write_milliseconds(loss.ideal_ms)
    lost_to = ", ".join(told) or f"{write_milliseconds(lost)} ms to parts that are not told apart from noise"
    return (
        f"{loss.run}: {reached} instead of the ideal {best}. "
        f"A step takes {step} ms where ideal scaling takes {ideal} ms; it loses {lost_to}."
    )


def _loss(row: dict[str, Any], reference: dict[str, Any]) -> Loss:
    more = row["replicas"] / reference["replicas"]
    scale = row["global_batch_size"] / reference["global_batch_size"] / more
    own = {key: float(row[f"step_ms_{key}"]) for key in WORDS}
    ideal = {key: float(reference[f"step_ms_{key}"]) * scale for key in WORDS}
    step, ideal_ms = sum(own.values()), sum(ideal.values())
    return Loss(
        run=row["run"],
        ideal_speedup=more,
        speedup=more * ideal_ms / step,
        ideal_ms=ideal_ms,
        step_ms=step,
        parts={key: own[key] - ideal[key] for key in WORDS},
        noise={key: noise for key in WORDS if (noise := _noise(row, key) + _noise(reference, key) * scale)},
    )


def _noise(row: dict[str, Any], part: str) -> float:
    return _number(row[f"step_ms_{part}_noise"])
