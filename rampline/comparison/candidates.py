"""What each finished run offers against the reference: accuracy, how sure that is, time and cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from rampline.comparison.accuracy_interval import difference_interval
from rampline.comparison.columns import is_missing
from rampline.comparison.table import Comparison

# Differences of shares come with rounding errors of their own: 0.98 - 0.97 is 0.010000000000000009.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One finished run that was scored on the same test set as the reference.

    Attributes:
        run: its name.
        accuracy: share of right answers on the test set.
        difference: `accuracy` minus that of the reference.
        interval: 95 % confidence interval of `difference`; None for the reference, and where the number of test
            examples is unknown.
        examples: images of the test set; None where unknown.
        tolerance: how far below the reference it may be, as a share.
        seconds: from the start of the roles to the end of training; the epochs' sum where that is unknown. With those
            of the runs that it starts from: without their weights there is no such run.
        cost_usd: what that costs; NaN without a price.
        deadline_seconds: how long it may take; None for no deadline.
    """

    run: str
    accuracy: float
    difference: float
    interval: tuple[float, float] | None
    examples: int | None
    tolerance: float
    seconds: float
    cost_usd: float
    deadline_seconds: float | None

    @property
    def is_within(self) -> bool:
        """Whether the measured accuracy is within the tolerance; a better one always is."""
        return self.difference >= -self.tolerance - ROUNDING

    @property
    def is_doubtful(self) -> bool:
        """Whether it is within, but the interval includes differences that are not."""
        return self.is_within and self.interval is not None and self.interval[0] < -self.tolerance - ROUNDING

    @property
    def is_in_time(self) -> bool:
        """Whether it meets the deadline, if there is one."""
        return self.deadline_seconds is None or self.seconds <= self.deadline_seconds


def list_candidates(comparison: Comparison) -> list[Candidate]:
    """The runs that can be held to the reference, itself included; empty when it was not scored or timed."""
    reference = next((row for row in comparison.finished if row["run"] == comparison.reference), None)
    if reference is None or not _is_usable(reference, reference):
        return []
    return [_candidate(row, reference, comparison) for row in comparison.finished if _is_usable(row, reference)]


def _is_usable(row: dict[str, Any], reference: dict[str, Any]) -> bool:
    scored = not is_missing(row["test_accuracy"]) and not is_missing(_seconds(row))
    return scored and all(row[key] == reference[key] for key in ("fingerprint", "test_split"))


def _trained_for(row: dict[str, Any], comparison: Comparison) -> list[dict[str, Any]]:
    """The run, and those whose weights it starts from, directly or not."""
    needed = [row]
    # Rows are in the order of their start.
    for earlier in reversed(comparison.rows):
        weights, directory = needed[-1]["model.weights"], earlier["run_dir"]
        if directory and PurePath(weights).is_relative_to(directory):
            needed.append(earlier)
    return needed


def _candidate(row: dict[str, Any], reference: dict[str, Any], comparison: Comparison) -> Candidate:
    hours, needed = comparison.deadline_hours, _trained_for(row, comparison)
    return Candidate(
        run=row["run"],
        accuracy=row["test_accuracy"],
        difference=row["test_accuracy"] - reference["test_accuracy"],
        interval=None if row["run"] == reference["run"] else _interval(row, reference),
        examples=None if is_missing(row["test_examples"]) else int(row["test_examples"]),
        tolerance=comparison.accuracy_tolerance,
        seconds=sum(map(_seconds, needed)),
        cost_usd=sum(math.nan if is_missing(row["cost_usd"]) else float(row["cost_usd"]) for row in needed),
        deadline_seconds=None if hours is None else 3600 * hours,
    )


def _interval(row: dict[str, Any], reference: dict[str, Any]) -> tuple[float, float] | None:
    counts = row["test_examples"], reference["test_examples"]
    if any(is_missing(count) or count < 1 for count in counts):
        return None
    return difference_interval(row["test_accuracy"], int(counts[0]), reference["test_accuracy"], int(counts[1]))


def _seconds(row: dict[str, Any]) -> float:
    return float(row["train_seconds"] if is_missing(row["wall_seconds"]) else row["wall_seconds"])
