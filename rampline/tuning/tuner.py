"""The search: one group of settings after the other, each from the best of those before (coordinate descent)."""

from __future__ import annotations

from typing import Any

from rampline.config import flatten
from rampline.tuning.outcome import Outcome, best_of
from rampline.tuning.rounds import SMALLEST_GAIN
from rampline.tuning.session import Session, not_tried
from rampline.tuning.space import INPUT, Limits, candidates, order_groups
from rampline.tuning.trial import Trial, with_changes

ONE_REPLICA = (
    "{strategy}: one replica was measured, alone in one process with its share of the cores; what replicas wait for "
    "each other is not in the figures"
)


class Tuner:
    """Searches the settings of one run.

    Args:
        run: its name.
        limits: what may be tried, and what adopted.
        session: measures, from the run's own settings on.
    """

    def __init__(self, run: str, limits: Limits, session: Session) -> None:
        self._run, self._limits, self._session = run, limits, session
        self._config = session.config
        self._trials: list[Trial] = []
        self._shown: list[Trial] = []
        self._baseline: tuple[float, ...] = ()
        self._input_share, self._comparison_seconds = 0.0, 0.0

    def tune(self) -> Outcome:
        """Search until everything was tried or the time is over.

        Raises:
            RunFailed: when the run's own settings cannot be measured.
        """
        for group in order_groups(self._limits):
            self._search(group)
        changed = self._changed()
        # Both in turns once more: gains need not multiply, and the best of many trials was also the luckiest.
        before_after = self._session.compare(self._config) if changed else None
        is_gain = before_after is not None and before_after.is_gain
        original = self._session.config
        is_alone = original.strategy in ("single", "mirrored")
        return Outcome(
            run=self._run,
            config=original,
            adopted=changed if is_gain else {},
            before_after=before_after,
            baseline=self._baseline,
            input_share=self._input_share,
            shown=tuple(self._shown),
            trials=tuple(self._trials),
            notes=() if is_alone else (ONE_REPLICA.format(strategy=original.strategy),),
            seconds=self._session.budget.spent,
        )

    def _search(self, group: str) -> None:
        before = self._config
        changes = candidates(group, before, self._limits)
        if not self._baseline:
            trials = self._measure_first(group, changes)
        elif group == INPUT and self._input_share < SMALLEST_GAIN:
            trials = not_tried(group, changes, f"the input takes {100 * max(0.0, self._input_share):.1f} % of a step")
        elif not self._session.budget.left:
            trials = not_tried(group, changes)
        else:
            trials, _ = self._session.measure(group, before, changes)
        self._trials += trials
        self._take(group, trials)

    def _measure_first(self, group: str, changes: list[dict[str, Any]]) -> list[Trial]:
        budget, began = self._session.budget, self._session.budget.spent
        trials, answers = self._session.measure(group, self._config, changes, is_first=True)
        self._baseline, self._input_share = answers.baseline, answers.input_share
        # The last comparison starts a process, compiles twice and has a few rounds, as this one had for the input.
        measured = sum(trial.rounds is not None for trial in trials)
        self._comparison_seconds = (budget.spent - began) / (1 + measured / 4)
        return trials

    def _take(self, group: str, trials: list[Trial]) -> None:
        """Adopt the best, or keep it to be shown; prefetch and cache are two coordinates of one group."""
        for key in dict.fromkeys(trial.coordinate for trial in trials):
            best = best_of([trial for trial in trials if trial.coordinate == key])
            if best is None:
                continue
            if self._limits.adopts(group):
                self._config = with_changes(self._config, best.changes)
                self._session.budget.reserve(self._comparison_seconds)
                # What the input takes of a step grows as the rest of it gets faster.
                self._input_share *= best.ratio
            else:
                self._shown.append(best)

    def _changed(self) -> dict[str, Any]:
        original = flatten(self._session.config)
        return {key: value for key, value in flatten(self._config).items() if original[key] != value}
