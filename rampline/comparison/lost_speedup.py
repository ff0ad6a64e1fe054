"""Where each lost part of the ideal speed-up went: a scaled run's step against the reference's, part by part.

The ideal step of a run with N times the reference's replicas takes the reference's time per example divided by N. What
the real step takes longer is the sum, over the parts, of the run's part less the reference's part scaled the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rampline.comparison.columns import is_missing
from rampline.comparison.table import Comparison
from rampline.explain.explanation import write_milliseconds
from rampline.record.units import write_ratio

WORDS = {
    "contention": "replicas sharing the hardware",
    "sync": "keeping the replicas in step",
    "other": "fixed cost that more replicas do not share out",
    "input": "the input pipeline",
    "compute": "less efficient smaller batches",
}
# Smaller parts of the loss are not worth a word.
SMALLEST_SHARE = 0.03


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a scaled run loses against ideal scaling of the reference.

    Attributes:
        run: its name.
        ideal_speedup: replicas of the run / replicas of the reference.
        speedup: by the probed steps: images per second of the run / those of the reference.
        ideal_ms: the ideal step, in milliseconds.
        step_ms: the real one.
        parts: milliseconds by part, which add up to `step_ms` - `ideal_ms`; negative where the run does better.
        noise: milliseconds by part, for those that are not told apart from noise in the run or in the reference.
    """

    run: str
    ideal_speedup: float
    speedup: float
    ideal_ms: float
    step_ms: float
    parts: dict[str, float]
    noise: dict[str, float]


def find_losses(comparison: Comparison) -> Iterator[Loss]:
    """One for each run that was probed and has more replicas than the reference, which was probed too."""
    rows = [row for row in comparison.finished if not is_missing(row["step_ms_compute"])]
    reference = next((row for row in rows if row["run"] == comparison.reference), None)
    if reference is None:
        return
    for row in rows:
        # The probes were made where the run ended.
        if row["replicas"] > reference["replicas"] and row["machines"][-1][1] == reference["machines"][-1][1]:
            yield _loss(row, reference)


def describe_loss(loss: Loss) -> str:
    """One sentence: the speed-up, the ideal one, and what the difference went into."""
    lost = loss.step_ms - loss.ideal_ms
    reached, best = write_ratio(loss.speedup), write_ratio(loss.ideal_speedup)
    if lost <= SMALLEST_SHARE * loss.step_ms:
        return f"{loss.run}: {reached} where the ideal is {best}. It scales ideally."
    named = sorted(loss.parts.items(), key=lambda part: part[1], reverse=True)
    told = [
        f"{write_milliseconds(ms)} ms to {WORDS[key]}"
        for key, ms in named
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
    noise = row[f"step_ms_{part}_noise"]
    return 0.0 if is_missing(noise) else float(noise)
