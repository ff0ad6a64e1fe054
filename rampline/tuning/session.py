"""Measuring the candidates of one group within what is left of the budget; what could not be measured says why."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rampline.config import DataConfig, RunConfig
from rampline.errors import DatasetError, RunFailed
from rampline.tuning.budget import Budget
from rampline.tuning.process import Answers, Figures, run_request
from rampline.tuning.rounds import Rounds
from rampline.tuning.space import BATCH
from rampline.tuning.trial import FAILED, MEASURED, NOT_TRIED, Request, Trial, Work, config_to_measure, with_changes

OUT_OF_TIME = "no time was left for it"
# Of the time that is left: what making another storage of the images may take.
PREPARATION_SHARE = 1 / 3


class PreparationTooLong(Exception):
    """Another storage of the images cannot be made in the time that is left."""


# The directory of the prepared dataset of these settings, found or made within so many seconds; raises
# PreparationTooLong or DatasetError.
Prepare = Callable[[DataConfig, float], str]


class Session:
    """The trials of one run, each group in a process of its own.

    Args:
        config: of the run, before anything is changed.
        dataset: directory of its prepared dataset.
        budget: for all trials.
        folder: for requests, events and logs of the processes.
        prepare: makes the other storages of the images.
        log: gets a line per trial.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        dataset: str,
        budget: Budget,
        folder: Path,
        prepare: Prepare,
        log: Callable[[str], None],
    ) -> None:
        self.config, self.budget = config, budget
        self._datasets = {config.data.cache: dataset}
        self._folder, self._prepare, self._log = folder, prepare, log

    def measure(
        self, group: str, before: RunConfig, changes: Sequence[Mapping[str, Any]], *, is_first: bool = False
    ) -> tuple[list[Trial], Answers]:
        """A trial for each of `changes` to `before`, in their order, and what else the process has told.

        Raises:
            RunFailed: when `before` cannot be measured; only with `is_first`, which also measures what its input takes.
        """
        outcomes: dict[int, Figures] = {}
        works = self._works(before, changes, outcomes)
        numbers, answers, left = list(works), Answers(), _untried(OUT_OF_TIME)

        def keep(number: int, outcome: Figures) -> None:
            outcomes[numbers[number]] = outcome
            self._log(str(Trial(group=group, changes=changes[numbers[number]], **outcome)))

        if works or is_first:
            request = Request(
                before=self._work_of(before),
                candidates=tuple(works.values()),
                seconds=self.budget.left,
                is_ladder=group == BATCH,
                with_input=is_first,
            )
            try:
                answers = run_request(request, self._folder / group, self.config, on_trial=keep)
            except RunFailed as error:
                if is_first:
                    raise
                self._log(f"{group}: {error}")
                left = {"status": FAILED, "reason": str(error)}
        told = [outcomes.get(number, left) for number in range(len(changes))]
        return [Trial(group=group, changes=change, **each) for change, each in zip(changes, told, strict=True)], answers

    def compare(self, after: RunConfig) -> Rounds:
        """The run's own settings against `after`, however little of the budget is left.

        Raises:
            RunFailed: when one of them cannot be measured.
        """
        found: list[Figures] = []
        self._log("before against after")
        request = Request(
            before=self._work_of(self.config), candidates=(self._work_of(after),), seconds=self.budget.seconds
        )
        run_request(request, self._folder / "after", self.config, on_trial=lambda _, outcome: found.append(outcome))
        if not found or found[0]["status"] != MEASURED:
            raise RunFailed(f"what was found does not run together: {found[0]['reason'] if found else OUT_OF_TIME}")
        return found[0]["rounds"]

    def _works(
        self, before: RunConfig, changes: Sequence[Mapping[str, Any]], outcomes: dict[int, Figures]
    ) -> dict[int, Work]:
        """What is run for each change by its number; for one that cannot be run there is an outcome."""
        works = {}
        for number, change in enumerate(changes):
            config = with_changes(before, change)
            try:
                if config.data.cache not in self._datasets:
                    self._datasets[config.data.cache] = self._prepare(config.data, self.budget.left * PREPARATION_SHARE)
                works[number] = self._work_of(config)
            except PreparationTooLong as error:
                outcomes[number] = _untried(str(error))
            except DatasetError as error:
                outcomes[number] = _untried(f"its images cannot be prepared: {error}")
        return works

    def _work_of(self, config: RunConfig) -> Work:
        return Work(config=config_to_measure(config), dataset=self._datasets[config.data.cache])


def not_tried(group: str, changes: Sequence[Mapping[str, Any]], reason: str = OUT_OF_TIME) -> list[Trial]:
    """Trials that were not begun."""
    return [Trial(group=group, changes=change, **_untried(reason)) for change in changes]


def _untried(reason: str) -> Figures:
    return {"status": NOT_TRIED, "reason": reason}
