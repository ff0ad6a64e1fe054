"""What the trials have found for one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlflow.tracking import MlflowClient

from rampline.config import RunConfig, flatten
from rampline.config.formats import write_value
from rampline.record.home import Home
from rampline.record.provenance import commit_tags, git_commit, process_identity, source_tags
from rampline.record.units import write_quantity
from rampline.tracking.reconciliation import PARENT_TAG, PROCESS_TAG, Known, Moment, Record, ending, reconcile
from rampline.tracking.store import experiment_id, open_tracking, tracking_errors
from rampline.tuning.trial import (
    BATCH,
    DOES_NOT_FIT,
    FAILED,
    MEASURED,
    NOT_TRIED,
    Rounds,
    Trial,
    describe_rule,
    with_changes,
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a search.

    Attributes:
        config: the settings of the run before.
        adopted: the recommended settings by dotted key, without those that it has already; empty where nothing is
            faster by more than the noise.
        before_after: both measured in turns; `None` where nothing was adopted.
        baseline: (rounds,) images per second of the settings before, in the first trial that was measured; empty
            where none was.
        shown: the best trial of each group that may change the accuracy and was not allowed, where it is faster.
        trials: every candidate, also those that were not tried.
        is_compiled: whether a function of the user's compiles the model, which then keeps its own learning rate.
        notes: what a person must know of how it was measured.
    """

    run: str
    config: RunConfig
    adopted: Mapping[str, Any]
    before_after: Rounds | None
    baseline: tuple[float, ...]
    shown: tuple[Trial, ...]
    trials: tuple[Trial, ...]
    is_compiled: bool
    notes: tuple[str, ...]
    seconds: float

    def batches(self, *statuses: str) -> list[int]:
        """Per-replica batches with one of these outcomes, ascending."""
        found = [trial for trial in self.trials if trial.group == BATCH and trial.status in statuses]
        return sorted(with_changes(self.config, trial.changes).per_replica_batch_size for trial in found)

    @property
    def largest_batch_that_fits(self) -> int:
        """The largest per-replica batch that has run."""
        return max([self.config.per_replica_batch_size, *self.batches(MEASURED)])


def best_of(trials: list[Trial]) -> Trial | None:
    """The fastest of those that are faster by more than the noise; of equally fast ones the first, `None` without any.

    As fast as the fastest is what falls behind it by no more than its noise, and by a tenth at most.
    """
    gains = [trial for trial in trials if trial.rounds and trial.rounds.is_gain]
    if not gains:
        return None
    fastest = max(gains, key=lambda trial: trial.ratio)
    noise = fastest.rounds.noise if fastest.rounds else 0.0
    return next(trial for trial in gains if trial.ratio >= fastest.ratio - min(noise, fastest.ratio / 10))


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
    baseline = found.before if found else outcome.baseline
    yield _row("before", _speed(baseline) if baseline else "not measured: no trial was")
    if found is None:
        yield _row("after", "the same: no setting is faster by more than the noise")
    elif not outcome.adopted:
        yield _row("after", f"{_speed(found.after)}: {found}, no more than the noise: nothing is recommended")
    else:
        yield _row("after", f"{_speed(found.after)}: {found}")
    for key, value in outcome.adopted.items():
        yield _row("", _change(outcome, key, value))


def _change(outcome: Outcome, key: str, value: Any) -> str:
    return f"{key} {write_value(flatten(outcome.config)[key])} -> {write_value(value)}"


def _changing(outcome: Outcome, train_examples: int) -> Iterator[str]:
    """What is faster and was not allowed: what it would change, and the option that allows it."""
    for trial in outcome.shown:
        key, is_batch = trial.key, trial.group == BATCH
        option = "--allow-batch" if is_batch else "--allow-precision"
        yield _row(
            "not free",
            f"{_change(outcome, key, trial.changes[key])}: {trial.rounds}; {option} recommends it",
        )
        yield _row("", _effect_of_batch(outcome, trial, train_examples) if is_batch else ROUNDING)


def _effect_of_batch(outcome: Outcome, trial: Trial, train_examples: int) -> str:
    before = outcome.config
    after = with_changes(before, trial.changes)
    rates = f"peak learning rate {before.peak_learning_rate:.4g} -> {after.peak_learning_rate:.4g}"
    rule = "its function compiles the model: scale the rate there" if outcome.is_compiled else describe_rule(before)
    steps = f"{before.steps_per_epoch(train_examples)} -> {after.steps_per_epoch(train_examples)}"
    batch = f"{before.global_batch_size} -> {after.global_batch_size}"
    return ", ".join(
        [f"global batch {batch}", f"steps per epoch {steps}", *([] if outcome.is_compiled else [rates]), rule]
    )


def _batches(outcome: Outcome) -> Iterator[str]:
    if any(trial.group == BATCH and trial.status != NOT_TRIED for trial in outcome.trials):
        beyond = min(outcome.batches(DOES_NOT_FIT), default=None)
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
    low, middle, high = map(write_quantity, (min(rounds), statistics.median(rounds), max(rounds)))
    return f"{middle} images/s ({low} to {high})"


def _row(name: str, text: str) -> str:
    return f"{name:<{WIDTH}} {text}"


def log_search(outcome: Outcome, study: str, home: Home, *, name: str) -> str:
    """Log a search and its trials; returns the id of the parent run.

    Raises:
        TrackingError: when the store refuses.
    """
    client = open_tracking(home)
    experiment = experiment_id(client, study, home)
    shared = {"rampline.study": study, "rampline.tuned_run": outcome.run, PROCESS_TAG: process_identity()}
    shared |= commit_tags(git_commit()) | source_tags(study) | {"mlflow.source.name": f"rampline tune {study}"}
    with tracking_errors("the trials cannot be logged"):
        began = int(1000 * (time.time() - outcome.seconds))
        tags = {"rampline.kind": "tune", **shared}
        parent = client.create_run(experiment, start_time=began, tags=tags, run_name=name)
        for trial in outcome.trials:
            _log_trial(client, experiment, trial, outcome, {PARENT_TAG: parent.info.run_id, **shared})
        recommended = {f"rampline.recommended.{key}": str(value) for key, value in outcome.adopted.items()}
        record = Record(
            status="COMPLETE",
            params=flatten(outcome.config),
            tags={**recommended, **ending("COMPLETE")},
            moments=[Moment(figures=_figures(outcome), time=time.time())],
        )
        reconcile(client, record, Known.of(parent))
    return parent.info.run_id


def _log_trial(client: MlflowClient, experiment: str, trial: Trial, outcome: Outcome, tags: Mapping[str, str]) -> None:
    own = {"rampline.kind": "trial", "rampline.trial_status": trial.status, "rampline.trial_reason": trial.reason}
    run = client.create_run(experiment, tags={**own, **tags}, run_name=trial.label)
    config = with_changes(outcome.config, trial.changes)
    batches = {"per_replica_batch_size": config.per_replica_batch_size, "global_batch_size": config.global_batch_size}
    figures = trial.rounds.figures() | {"peak_memory_bytes": trial.rounds.memory_bytes} if trial.rounds else {}
    status = "FAILED" if trial.status == "failed" else "COMPLETE"
    record = Record(
        status=status,
        params={"group": trial.group, **trial.changes, **batches},
        tags=ending(status, trial.reason or None),
        moments=[Moment(figures=figures, time=time.time())],
    )
    reconcile(client, record, Known.of(run))


def _figures(outcome: Outcome) -> dict[str, float | None]:
    tried = [trial for trial in outcome.trials if trial.status == MEASURED]
    figures: dict[str, float | None] = {"trials": len(tried), "seconds": outcome.seconds}
    figures["largest_batch_that_fits"] = outcome.largest_batch_that_fits
    return figures | (outcome.before_after.figures() if outcome.before_after else {})
