"""What each finished run offers against the most accurate one: accuracy, how sure that is, time and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rampline.comparison.accuracy_interval import difference_interval
from rampline.comparison.answers import have_same_answers, pair
from rampline.comparison.columns import is_missing
from rampline.comparison.table import Comparison

# Differences of shares come with rounding errors of their own: 0.98 - 0.97 is 0.010000000000000009.
ROUNDING = 1e-9
# Below this, two throughputs or times measured once each are not told apart.
CLEARLY_FASTER = 1.05


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One finished run that was scored on the reference's test images, and trained on its machine alone.

    Attributes:
        run: its name.
        accuracy: share of right answers on the test set.
        difference: `accuracy` minus that of the most accurate candidate.
        interval: 95 % confidence interval of `difference`; None for the most accurate one, and where the number of test
            examples is unknown.
        is_paired: whether the interval was found image by image.
        examples: images of the test set; None where unknown.
        tolerance: how far below the most accurate one it may be, as a share.
        seconds: from the start of the roles to the end of training; the epochs' sum where that is unknown. With those
            of the runs that it starts from: without their weights there is no such run.
        cost_usd: what that costs; NaN without a price.
        deadline_seconds: how long it may take; None for no deadline.
        repeats: the candidate that it is the same training as; empty for none. See `_find_repeated`.
    """

    run: str
    accuracy: float
    difference: float
    interval: tuple[float, float] | None
    is_paired: bool
    examples: int | None
    tolerance: float
    seconds: float
    cost_usd: float
    deadline_seconds: float | None
    repeats: str

    @property
    def is_within(self) -> bool:
        """Whether the measured accuracy is within the tolerance."""
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
    """The runs that can be held to each other; empty when the reference was not scored or timed."""
    reference = next((row for row in comparison.finished if row["run"] == comparison.reference), None)
    if reference is None or not _is_usable(reference, reference, comparison):
        return []
    rows = [row for row in comparison.finished if _is_usable(row, reference, comparison)]
    # Of equally accurate ones the reference.
    best = max([reference, *rows], key=lambda row: row["test_accuracy"])
    repeated = _find_repeated([reference, *(row for row in rows if row is not reference)])
    return [_candidate(row, best, comparison, repeated.get(row["run"], "")) for row in rows]


def _is_usable(row: dict[str, Any], reference: dict[str, Any], comparison: Comparison) -> bool:
    scored = not is_missing(row["test_accuracy"]) and not is_missing(_seconds(row))
    return scored and is_scored_alike(row, reference) and comparison.is_timed_alike(row)


def is_scored_alike(row: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs were scored on the same images.

    `data.limit` draws as many images of each class by `data.split_seed`, the first ones in one order. So limits that
    leave equally many images leave the same.
    """
    keys = ["fingerprint", "test_split"]
    is_carved = row["test_split"] != "test"
    if is_carved or not {row["data.limit"], other["data.limit"]} <= {"", "None"}:
        keys.append("data.split_seed")
    if is_carved:
        keys.append("data.validation_fraction")
    counts = [row["test_examples"], other["test_examples"]]
    return all(row[key] == other[key] for key in keys) and (any(map(is_missing, counts)) or counts[0] == counts[1])


def _find_repeated(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The runs that repeat an earlier one, with that: the same model came out, and it was not made clearly faster.

    With the same settings a higher throughput says nothing either, as both are the same set-up.
    """
    repeated: dict[str, str] = {}
    first: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for other in first.setdefault(row["answers"] or row["run"], []):
            is_faster = row["images_per_second"] >= CLEARLY_FASTER * other["images_per_second"]
            if row["set_up"] == other["set_up"] or not is_faster:
                repeated.setdefault(row["run"], other["run"])
        if row["run"] not in repeated:
            first[row["answers"] or row["run"]].append(row)
    return repeated


def _candidate(row: dict[str, Any], best: dict[str, Any], comparison: Comparison, repeats: str) -> Candidate:
    hours, needed = comparison.deadline_hours, [row, *comparison.ancestors_of(row)]
    interval, is_paired = (None, False) if row is best else _interval(row, best, comparison)
    return Candidate(
        run=row["run"],
        accuracy=row["test_accuracy"],
        difference=row["test_accuracy"] - best["test_accuracy"],
        interval=interval,
        is_paired=is_paired,
        examples=None if is_missing(row["test_examples"]) else int(row["test_examples"]),
        tolerance=comparison.accuracy_tolerance,
        seconds=sum(map(_seconds, needed)),
        cost_usd=sum(math.nan if is_missing(row["cost_usd"]) else float(row["cost_usd"]) for row in needed),
        deadline_seconds=None if hours is None else 3600 * hours,
        repeats=repeats,
    )


def _interval(
    row: dict[str, Any], best: dict[str, Any], comparison: Comparison
) -> tuple[tuple[float, float] | None, bool]:
    if have_same_answers(row, best):
        return (0.0, 0.0), True  # the same model: on other images, too
    paired = pair(comparison.answers, row["run"], best["run"])
    if paired is not None:
        return paired.interval, True
    counts = row["test_examples"], best["test_examples"]
    if any(is_missing(count) or count < 1 for count in counts):
        return None, False
    interval = difference_interval(row["test_accuracy"], int(counts[0]), best["test_accuracy"], int(counts[1]))
    return interval, False


def _seconds(row: dict[str, Any]) -> float:
    return float(row["train_seconds"] if is_missing(row["wall_seconds"]) else row["wall_seconds"])
