"""Which set-up to take: the fastest and the cheapest of those that reach the best accuracy, but for a tolerance.

A `Candidate` is what a finished run offers against the most accurate one: accuracy, how sure that is, time and cost.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from rampline.comparison.repeats import Figure, figure_of
from rampline.comparison.runs import Comparison, is_missing, written
from rampline.comparison.section import ReportTable, Section
from rampline.record.units import NONE, write_accuracy, write_count, write_dollars, write_duration, write_number_of
from rampline.registry.paired_test import compare_predictions, difference_interval

# Differences of shares come with rounding errors of their own: 0.98 - 0.97 is 0.010000000000000009.
ROUNDING = 1e-9
ABOUT = (
    "Time is from the start of the roles to the end of training, with that of the runs whose weights a run starts "
    "from; cost is that time at the machine's price. A run that is not clearly faster or cheaper than the reference, "
    "by 5 % and with repeats by more than their intervals, does not replace it, nor does one that gives its very "
    "answers after as many epochs, if it is the same set-up or does not clearly train more images/s at the same "
    "price, with the same checkpoints and logs: that is the same training once more. Points are against the most "
    "accurate run. Their interval is Newcombe's for paired proportions, image by image; where the answers of a run "
    "are not in MLflow, it is that for independent ones, which is wider. Where both have repeats it has Welch's over "
    "the seeds as well; else it does not cover what another seed would change. The images that choose a run also "
    "score it, so the best of many runs looks better than it is."
)
YES = {True: "yes", False: "no"}
# Settings that change what is paid for a model, and leave its answers and the time of an epoch as they are.
PAID = ("checkpoint_every", "cluster.price_per_hour", "log_examples", "tensorboard")
# The interval of two runs that are one model.
SAME = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One finished run that was scored on the reference's test images, and trained on its machine alone.

    Attributes:
        difference: `accuracy` minus that of the most accurate candidate.
        interval: 95 % confidence interval of `difference`; None for the most accurate one, and where the number of test
            examples is unknown.
        examples: images of the test set; None where unknown.
        time: seconds from the start of the roles to the end of training; the epochs' sum where that is unknown. With
            those of the runs that it starts from: without their weights there is no such run.
        cost: what that costs, in USD; NaN without a price.
        repeats: the candidate that it is the same training as; empty for none. See `_find_repeated`.
        is_within: whether `difference` is within the tolerance.
        is_doubtful: whether it is, but `interval` includes differences that are not.
        is_in_time: whether it meets the deadline, if there is one.
    """

    run: str
    accuracy: float
    difference: float
    interval: tuple[float, float] | None
    examples: int | None
    time: Figure
    cost: Figure
    repeats: str
    is_within: bool
    is_doubtful: bool
    is_in_time: bool


def list_candidates(comparison: Comparison) -> list[Candidate]:
    """The runs that can be held to each other; empty when the reference was not scored or timed."""
    reference = comparison.reference_row
    if reference is None or not _is_usable(reference, reference, comparison):
        return []
    rows = [row for row in comparison.finished if _is_usable(row, reference, comparison)]
    # Of equally accurate ones the reference.
    best = max([reference, *rows], key=lambda row: row["test_accuracy"])
    repeated = _find_repeated([reference, *(row for row in rows if row is not reference)])
    return [_candidate(row, best, comparison, repeated.get(row["run"], "")) for row in rows]


def _is_usable(row: dict[str, Any], reference: dict[str, Any], comparison: Comparison) -> bool:
    scored = not is_missing(row["test_accuracy"]) and not is_missing(time_of(comparison, row).value)
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


def have_same_answers(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs gave the same answers with the same probabilities: they are the same model, bit by bit."""
    return bool(row["answers"]) and row["answers"] == other["answers"]


def _find_repeated(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The runs that repeat an earlier one, with that: the same model came out, and it was not made clearly faster.

    With the same settings a higher throughput says nothing either, as both are the same set-up. A run of fewer epochs,
    or with other settings that are `PAID`, takes less time or money for another reason than noise.
    """
    repeated: dict[str, str] = {}
    first: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for other in first.setdefault(row["answers"] or row["run"], []):
            is_faster = figure_of(row, "images_per_second").is_clearly_above(figure_of(other, "images_per_second"))
            changed = {*row["set_up"].splitlines()} ^ {*other["set_up"].splitlines()}
            is_other = is_faster or any(line.startswith(PAID) for line in changed)
            if row["epochs"] == other["epochs"] and not (changed and is_other):
                repeated.setdefault(row["run"], other["run"])
        if row["run"] not in repeated:
            first[row["answers"] or row["run"]].append(row)
    return repeated


def _candidate(row: dict[str, Any], best: dict[str, Any], comparison: Comparison, repeats: str) -> Candidate:
    difference, hours = row["test_accuracy"] - best["test_accuracy"], comparison.deadline_hours
    interval = None if row is best else _interval_to_best(row, best, comparison)
    lowest, time = -comparison.accuracy_tolerance - ROUNDING, time_of(comparison, row)
    return Candidate(
        run=row["run"],
        accuracy=row["test_accuracy"],
        difference=difference,
        interval=interval,
        examples=None if is_missing(row["test_examples"]) else int(row["test_examples"]),
        time=time,
        cost=cost_of(comparison, row),
        repeats=repeats,
        is_within=difference >= lowest,
        is_doubtful=difference >= lowest and interval is not None and interval[0] < lowest,
        is_in_time=hours is None or time.value <= 3600 * hours,
    )


def _interval_to_best(row: dict[str, Any], best: dict[str, Any], comparison: Comparison) -> tuple[float, float] | None:
    if have_same_answers(row, best):
        return SAME  # the same model: on other images, too
    over_images = _interval_over_images(row, best, comparison)
    accuracies = [comparison.accuracies_of(each["run"]) for each in (row, best)]
    if over_images is None or min(map(len, accuracies)) < 2 or max(map(len, map(set, accuracies))) == 1:
        return over_images
    from scipy.stats import ttest_ind  # 1 s to import, which trainings that are not repeated do without

    with warnings.catch_warnings():
        # Of one that has the same accuracy with every seed: its variance is 0, as it should be.
        warnings.simplefilter("ignore", RuntimeWarning)
        over_seeds = ttest_ind(*accuracies, equal_var=False).confidence_interval()
    # Images and seeds err independently of each other, the one about the difference told, the other about the mean.
    told, mean = row["test_accuracy"] - best["test_accuracy"], (over_seeds.low + over_seeds.high) / 2
    below = math.hypot(told - over_images[0], mean - over_seeds.low)
    return told - below, told + math.hypot(over_images[1] - told, over_seeds.high - mean)


def _interval_over_images(
    row: dict[str, Any], best: dict[str, Any], comparison: Comparison
) -> tuple[float, float] | None:
    new, old = (comparison.answers.get(each["run"]) for each in (row, best))
    if new and old and len(new.labels) == len(old.labels) and (new.labels == old.labels).all():
        paired = compare_predictions(new.labels, old.predicted, new.predicted)
        # The median of an even number of trainings lies between the accuracies of two of them.
        off = row["test_accuracy"] - best["test_accuracy"] - paired.difference
        low, high = paired.interval
        return low + off, high + off
    counts = row["test_examples"], best["test_examples"]
    if any(is_missing(count) or count < 1 for count in counts):
        return None
    return difference_interval(row["test_accuracy"], int(counts[0]), best["test_accuracy"], int(counts[1]))


def time_of(comparison: Comparison, row: dict[str, Any]) -> Figure:
    """Seconds that a run takes, with those of the runs that it starts from."""
    return reduce(operator.add, map(_time, [row, *comparison.ancestors_of(row)]))


def cost_of(comparison: Comparison, row: dict[str, Any]) -> Figure:
    """What that costs, in USD; NaN without a price."""
    return reduce(operator.add, (figure_of(each, "cost_usd") for each in [row, *comparison.ancestors_of(row)]))


def _time(row: dict[str, Any]) -> Figure:
    return figure_of(row, "train_seconds" if is_missing(row["wall_seconds"]) else "wall_seconds")


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to take, and why.

    Attributes:
        sentence: the answer; empty where there is nothing to choose between.
        remarks: what to know before following it.
        unpriced: which runs have no price; empty where all have one.
        fastest: the run that takes the least time; empty when none qualifies.
        cheapest: the run that costs the least; empty when none qualifies, or one that does has no price.
    """

    sentence: str
    remarks: tuple[str, ...]
    unpriced: str
    fastest: str
    cheapest: str
    candidates: tuple[Candidate, ...]


def recommend(comparison: Comparison) -> Recommendation:
    """The fastest and the cheapest run within the tolerance of the best accuracy, and within the deadline."""
    candidates = list_candidates(comparison)
    kept = [candidate for candidate in candidates if candidate.is_within and candidate.is_in_time]
    names = {candidate.run for candidate in kept}
    kept = [candidate for candidate in kept if candidate.repeats not in names]
    fastest = _least(kept, [candidate.time for candidate in kept], comparison.reference)
    costs = [candidate.cost for candidate in kept]
    cheapest = None if any(math.isnan(cost.value) for cost in costs) else _least(kept, costs, comparison.reference)
    if fastest and cheapest and cheapest.run != comparison.reference:
        # Where noise alone parts their costs, one run is the answer.
        cheapest = cheapest if fastest.cost.is_clearly_above(cheapest.cost) else fastest
    return Recommendation(
        sentence=_answer(comparison, candidates, fastest, cheapest),
        remarks=tuple(_remarks(comparison, candidates, fastest, cheapest)),
        unpriced=_tell_unpriced(candidates),
        fastest=fastest.run if fastest else "",
        cheapest=cheapest.run if cheapest else "",
        candidates=tuple(candidates),
    )


def _least(candidates: Sequence[Candidate], figures: Sequence[Figure], reference: str) -> Candidate | None:
    """The candidate of the smallest figure among those that clearly beat the reference; the reference if none does."""
    ranked = sorted(zip(figures, candidates, strict=True), key=lambda pair: pair[0].value)
    own = [pair for pair in ranked if pair[1].run == reference]
    better = [pair for pair in ranked if all(one.is_clearly_above(pair[0]) for one, _ in own)]
    return next((candidate for _, candidate in (*better, *own)), None)


def _answer(
    comparison: Comparison, candidates: list[Candidate], fastest: Candidate | None, cheapest: Candidate | None
) -> str:
    reference, row = comparison.reference, comparison.reference_row
    if row is None or len(comparison.finished) < 2:
        return ""
    if not candidates:
        if not comparison.is_timed_alike(row):
            return f"No recommendation: the reference {reference} was not trained on one machine alone."
        return f"No recommendation: the reference {reference} has no test accuracy to hold other runs to."
    scope = _scope(comparison, candidates)
    within = [candidate for candidate in candidates if candidate.is_within]
    if fastest is None:
        quickest = min(within, key=lambda candidate: candidate.time.value)
        return f"{scope}, no run is ready in time: {quickest.run} takes {write_duration(quickest.time.value)}."
    if len(candidates) == 1:
        return f"No other run can be weighed against {fastest.run}, which takes {_facts(fastest)}."
    if len(within) == 1:
        return f"No other run comes within {_tolerance(comparison, candidates)}: {fastest.run} takes {_facts(fastest)}."
    least = f"{scope}, {_name(fastest, reference)} takes the least time"
    if cheapest is fastest:
        return f"{least} and costs the least: {_facts(fastest)}."
    other = f"; {_name(cheapest, reference)} costs the least: {_facts(cheapest)}" if cheapest else ""
    return f"{least}: {_facts(fastest)}{other}."


def _remarks(
    comparison: Comparison, candidates: list[Candidate], fastest: Candidate | None, cheapest: Candidate | None
) -> list[str]:
    remarks = [
        f"{candidate.run} is the same training as {candidate.repeats}: the same answers, and no clearly higher speed "
        "that another set-up would explain. Where its time is less, that is noise: it does not replace the other."
        for candidate in candidates
        if candidate.repeats
    ]
    remarks += _not_told_apart(candidates, fastest)
    remarks += [
        "Not shown to be within: the interval of the difference includes differences beyond the tolerance. "
        f"{write_count(candidate.examples or 0)} test images cannot tell that much."
        for candidate in (fastest, cheapest)
        if candidate and candidate.is_doubtful
    ][:1]
    chosen = {candidate.run for candidate in (fastest, cheapest) if candidate}
    remarks += [
        f"{row['run']} has the time and the accuracy that it had when it stopped, {row['stopped']}."
        for row in comparison.finished
        if row["run"] in chosen and row["stopped"]
    ]
    known = {candidate.run for candidate in candidates}
    left_out = [row for row in comparison.finished if row["run"] not in known] if candidates else []
    elsewhere = [row["run"] for row in left_out if not comparison.is_timed_alike(row)]
    others = [row["run"] for row in left_out if row["run"] not in elsewhere]
    if others:
        remarks.append(f"Not scored on the reference's test set, so not weighed: {', '.join(others)}.")
    if elsewhere:
        remarks.append(f"Not trained on the reference's machine alone, so not weighed: {', '.join(elsewhere)}.")
    return remarks


def _tell_unpriced(candidates: Sequence[Candidate]) -> str:
    without = [candidate.run for candidate in candidates if candidate.is_within and math.isnan(candidate.cost.value)]
    if not without:
        return ""
    some = f" for {', '.join(without)}" if len(without) < sum(c.is_within for c in candidates) else ""
    return f"No price is given{some}, so cost is not compared."


def _not_told_apart(candidates: Sequence[Candidate], fastest: Candidate | None) -> list[str]:
    if fastest is None:
        return []
    others = [c for c in candidates if c is not fastest and c.is_within and c.is_in_time and not c.repeats]
    close = [c.run for c in others if not c.time.is_clearly_above(fastest.time)]
    return [f"Not told apart from {fastest.run} by their times: {', '.join(close)}."] if close else []


def _scope(comparison: Comparison, candidates: Sequence[Candidate]) -> str:
    hours = comparison.deadline_hours
    deadline = "" if hours is None else f" and a deadline of {hours:g} h"
    return f"Within {_tolerance(comparison, candidates)}{deadline}"


def _tolerance(comparison: Comparison, candidates: Sequence[Candidate]) -> str:
    reference = comparison.reference_row
    split = reference["test_split"] if reference else ""
    # Its own difference is exactly 0.
    best = [candidate for candidate in candidates if candidate.difference == 0]
    run = next((candidate.run for candidate in best if candidate.run == comparison.reference), best[0].run)
    accuracy = write_accuracy(best[0].accuracy)
    # A run that was trained elsewhere may be more accurate.
    scored = (row for row in comparison.finished if reference and is_scored_alike(row, reference))
    weighed = " that was weighed" if any(row["test_accuracy"] > best[0].accuracy for row in scored) else ""
    return f"{_points_of(comparison)} of the best {split or 'test'} accuracy{weighed} ({run}, {accuracy})"


def _name(candidate: Candidate, reference: str) -> str:
    return f"the reference {reference}" if candidate.run == reference else candidate.run


def _facts(candidate: Candidate) -> str:
    """`12.0 s, $0.0200, -0.2 points (95 % interval -0.9 to +0.3)`; the most accurate run has no difference."""
    facts = [write_duration(candidate.time.value)]
    facts += [] if math.isnan(candidate.cost.value) else [write_dollars(candidate.cost.value)]
    if candidate.interval == SAME:
        facts.append("the same answers")
    elif candidate.interval is not None:
        doubt = ", not shown to be within" if candidate.is_doubtful else ""
        facts.append(f"{_points(candidate.difference)} points (95 % interval {_interval(candidate)}{doubt})")
    return ", ".join(facts)


def _interval(candidate: Candidate) -> str:
    if candidate.interval == SAME:
        return "same answers"
    return NONE if candidate.interval is None else " to ".join(_points(bound) for bound in candidate.interval)


def _points_of(comparison: Comparison) -> str:
    return write_number_of("point", round(100 * comparison.accuracy_tolerance, 3))


def _points(share: float) -> str:
    # No minus sign before a zero.
    return f"{round(100 * share, 1) + 0.0:+.1f}".replace("-", "\N{MINUS SIGN}")


def make_recommendation_section(comparison: Comparison) -> Section | None:
    """What to know before following the answer, and what was weighed; None where there is nothing to choose."""
    recommendation = recommend(comparison)
    if not recommendation.sentence:
        return None
    return Section(
        id="recommendation",
        title="Recommendation",
        sentences=(*recommendation.remarks, *comparison.not_measured),
        tables=(_table(comparison, recommendation.candidates),) if recommendation.candidates else (),
        about=ABOUT,
    )


def _table(comparison: Comparison, candidates: Sequence[Candidate]) -> ReportTable:
    within, in_time = f"within {_points_of(comparison)}", comparison.deadline_hours is not None
    head = ("run", "accuracy", "points", "95 % interval", within, "time", "cost", *(["in time"] if in_time else []))
    rows = [(*_cells(candidate), *([YES[candidate.is_in_time]] if in_time else [])) for candidate in candidates]
    return ReportTable(
        title="",
        head=head,
        rows=tuple(rows),
        numeric=(False, True, True, True, False, True, True, *([False] if in_time else [])),
    )


def _cells(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.run,
        write_accuracy(candidate.accuracy),
        _points(candidate.difference),
        _interval(candidate),
        "not shown" if candidate.is_doubtful else YES[candidate.is_within],
        write_duration(candidate.time.value),
        written(candidate.cost.value, write_dollars),
    )
