"""What the trials have found for one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rampline.config import RunConfig, flatten
from rampline.tuning.rounds import Rounds
from rampline.tuning.space import BATCH
from rampline.tuning.trial import DOES_NOT_FIT, MEASURED, Trial, with_changes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a search.

    Attributes:
        run: name of the run.
        config: its settings before.
        adopted: the recommended settings by dotted key, without those that it has already; empty where nothing is
            faster by more than the noise.
        before_after: both measured in turns; `None` where nothing was adopted.
        baseline: (rounds,) images per second of the settings before, in the first trial that was measured.
        input_share: of a step of the settings that were adopted, lost to the input, as far as is known.
        shown: the best trial of each group that may change the accuracy and was not allowed, where it is faster.
        trials: every candidate, also those that were not tried.
        notes: what a person must know of how it was measured.
        seconds: that all took.
    """

    run: str
    config: RunConfig
    adopted: Mapping[str, Any]
    before_after: Rounds | None
    baseline: tuple[float, ...]
    input_share: float
    shown: tuple[Trial, ...]
    trials: tuple[Trial, ...]
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

    @property
    def smallest_batch_that_does_not_fit(self) -> int | None:
        """`None` where every batch that was tried has run."""
        return min(self.batches(DOES_NOT_FIT), default=None)

    def old_value(self, key: str) -> Any:
        """What a setting was before."""
        return flatten(self.config)[key]


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
