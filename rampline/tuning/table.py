"""The outcome of a search as lines of text."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from rampline.tuning.outcome import Outcome
from rampline.tuning.scaling import describe_rule
from rampline.tuning.space import BATCH
from rampline.tuning.trial import DOES_NOT_FIT, FAILED, NOT_TRIED, Trial, with_changes, write_value

ROUNDING = "the network computes with fewer digits: compare the accuracy of a whole training before you keep it"
WIDTH = 12


def describe_outcome(outcome: Outcome, *, train_examples: int) -> list[str]:
    """What a person should read of an outcome, line by line.

    Args:
        outcome: of a search.
        train_examples: images of the training split, for the steps of an epoch.
    """
    return [
        *(_row("note", note) for note in outcome.notes),
        *_recommended(outcome),
        *_changing(outcome, train_examples),
        *_batches(outcome),
        *_not_measured(outcome),
        _row("took", f"{outcome.seconds:.0f} s"),
    ]


def _recommended(outcome: Outcome) -> Iterator[str]:
    found = outcome.before_after
    yield _row("before", _speed(found.before if found else outcome.baseline))
    if found is None:
        yield _row("after", "the same: no setting is faster by more than the noise")
    elif not outcome.adopted:
        yield _row("after", f"{_speed(found.after)}: {found}, no more than the noise: nothing is recommended")
    else:
        yield _row("after", f"{_speed(found.after)}: {found}")
    for key, value in outcome.adopted.items():
        yield _row("", f"{key} {write_value(outcome.old_value(key))} -> {write_value(value)}")


def _changing(outcome: Outcome, train_examples: int) -> Iterator[str]:
    """What is faster and was not allowed: what it would change, and the option that allows it."""
    for trial in outcome.shown:
        key, is_batch = trial.coordinate, trial.group == BATCH
        option = "--allow-batch" if is_batch else "--allow-precision"
        yield _row(
            "not free",
            f"{key} {write_value(outcome.old_value(key))} -> {write_value(trial.changes[key])}: "
            f"{trial.rounds}; {option} recommends it",
        )
        yield _row("", _effect_of_batch(outcome, trial, train_examples) if is_batch else ROUNDING)


def _effect_of_batch(outcome: Outcome, trial: Trial, train_examples: int) -> str:
    before = outcome.config
    after = with_changes(before, trial.changes)
    rates = f"{before.peak_learning_rate:.4g} -> {after.peak_learning_rate:.4g}"
    steps = f"{before.steps_per_epoch(train_examples)} -> {after.steps_per_epoch(train_examples)}"
    batch = f"{before.global_batch_size} -> {after.global_batch_size}"
    return f"global batch {batch}, steps per epoch {steps}, peak learning rate {rates}, {describe_rule(before)}"


def _batches(outcome: Outcome) -> Iterator[str]:
    if any(trial.group == BATCH and trial.status != NOT_TRIED for trial in outcome.trials):
        beyond = outcome.smallest_batch_that_does_not_fit
        why = f"{beyond} does not fit" if beyond else "no larger one was tried"
        yield _row("memory", f"largest per-replica batch that ran: {outcome.largest_batch_that_fits} ({why})")


def _not_measured(outcome: Outcome) -> Iterator[str]:
    for status in (DOES_NOT_FIT, FAILED, NOT_TRIED):
        labels: dict[str, list[str]] = {}
        for trial in outcome.trials:
            if trial.status == status:
                labels.setdefault(trial.reason, []).append(trial.label)
        for reason, found in labels.items():
            yield _row(status, f"{', '.join(found)}: {reason}")


def _speed(rounds: Sequence[float]) -> str:
    """`1,234 images/s (1,200 to 1,250)`: median, smallest and largest of the rounds."""
    low, middle, high = (_number(value) for value in (min(rounds), statistics.median(rounds), max(rounds)))
    return f"{middle} images/s ({low} to {high})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _row(name: str, text: str) -> str:
    return f"{name:<{WIDTH}} {text}"
