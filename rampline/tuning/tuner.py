"""The search: one group of settings after the other, each from the best of those before (coordinate descent)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rampline.config import DataConfig, RunConfig, flatten
from rampline.errors import DatasetError, InputError, RunFailed
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.local import LOCAL
from rampline.jobs.roles import local_tasks, role_environment
from rampline.tuning.outcome import Outcome, best_of
from rampline.tuning.space import BATCH, INPUT, Limits, candidates, order_groups
from rampline.tuning.trial import (
    DOES_NOT_FIT,
    FAILED,
    MEASURED,
    NOT_TRIED,
    SMALLEST_GAIN,
    Request,
    Rounds,
    Trial,
    Work,
    config_to_measure,
    with_changes,
)

# Without a word: the start of TensorFlow and the compilation of a large network with XLA.
SILENCE_SECONDS = 300

# Fields of a `Trial`: `status`, `reason` and `rounds`.
Figures = dict[str, Any]
OnTrial = Callable[[int, Figures], None]


@dataclass(kw_only=True)
class Answers:
    """What a process has told.

    Attributes:
        trials: outcomes by the number of the candidate.
        running: the candidate that was being tried when it ended.
        input_share: of the step before, lost to the input; 0 where it was not asked for.
        baseline: images per second before, by round; empty where that was not asked for.
    """

    trials: dict[int, Figures] = field(default_factory=dict)
    running: int | None = None
    input_share: float = 0.0
    baseline: tuple[float, ...] = ()

    def take(self, event: Mapping[str, Any]) -> None:
        """One event of `rampline.tuning.bench`."""
        kind = event["event"]
        if kind == "input":
            self.input_share, self.baseline = event["share"], tuple(event["images_per_second"])
        elif kind == "begins":
            self.running = event["number"]
        elif kind == "trial":
            rounds = Rounds.from_dict(event["rounds"]) if event.get("rounds") else None
            outcome = {"status": event["status"], "reason": event.get("reason", ""), "rounds": rounds}
            self.trials[event["number"]], self.running = outcome, None


def run_request(request: Request, folder: Path, config: RunConfig, *, on_trial: OnTrial) -> Answers:
    """Measure a request in a process of its own, and in a further one for what is left when a trial has killed it.

    Whatever ends this call, none of the processes is alive afterwards.

    Args:
        request: what to measure.
        folder: for the request, the log and the events.
        config: of the run, whose share of cores and GPUs the process gets.
        on_trial: is called with the number and outcome of each candidate, as soon as it is known.

    Raises:
        RunFailed: when the settings before cannot be run themselves.
    """
    answers, numbers, attempt, began = Answers(), list(range(len(request.candidates))), 0, time.monotonic()
    while numbers or not attempt:
        chosen = tuple(request.candidates[number] for number in numbers)
        left = max(0.0, request.seconds - (time.monotonic() - began))
        part = dataclasses.replace(request, candidates=chosen, seconds=left)
        found = _run(part, folder / str(attempt), config, partial(_renumbered, on_trial, numbers))
        answers.trials |= {numbers[number]: outcome for number, outcome in found.trials.items()}
        if not attempt:
            answers.input_share, answers.baseline = found.input_share, found.baseline
            request = dataclasses.replace(request, with_input=False)
        if found.running is None:
            break
        attempt, numbers = attempt + 1, _not_tried(request, answers, numbers[found.running])
    return answers


def _renumbered(on_trial: OnTrial, numbers: Sequence[int], number: int, outcome: Figures) -> None:
    on_trial(numbers[number], outcome)


def _not_tried(request: Request, answers: Answers, killer: int) -> list[int]:
    """What can still be tried after the candidate `killer` took its process with it."""
    size = request.candidates[killer].config.per_replica_batch_size
    left = [number for number in range(killer + 1, len(request.candidates)) if number not in answers.trials]
    return [n for n in left if not request.is_ladder or request.candidates[n].config.per_replica_batch_size < size]


def _run(request: Request, folder: Path, config: RunConfig, on_trial: OnTrial) -> Answers:
    answers = Answers()

    def hear(event: dict[str, Any]) -> None:
        answers.take(event)
        if event["event"] == "trial":
            on_trial(event["number"], answers.trials[event["number"]])

    task = next(task for task in reversed(local_tasks(config)) if task.role != "ps")
    job = Job(
        function="tune",
        what="its process",
        folder=folder,
        log=folder / "trials.log",
        arguments={"request": request.to_dict()},
        environment=role_environment(task, config) | {"TF_CONFIG": "{}"},
        silence_seconds=SILENCE_SECONDS,
        ends_first=True,
    )
    try:
        run_job(job, launcher=LOCAL, on_event=hear)
    except (InputError, JobFailed) as failure:
        # It took the candidate with it that it was trying; without one, nothing can be tried.
        if answers.running is None:
            raise RunFailed(f"the run cannot be measured: {failure}") from failure
        lacks_memory = isinstance(failure, JobFailed) and failure.lacks_memory
        outcome = {"status": DOES_NOT_FIT if lacks_memory else FAILED, "reason": str(failure), "rounds": None}
        answers.trials[answers.running] = outcome
        on_trial(answers.running, outcome)
    return answers


class Budget:
    """Counts down from its making; a trial that has begun is always finished, so it may be overdrawn by one.

    Args:
        seconds: for all trials together, with the start of their processes.
        clock: monotonic seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock, self._began = clock, clock()
        self._reserved = 0.0

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds for further trials; not below 0."""
        return max(0.0, self.seconds - self._reserved - self.spent)

    def reserve(self, seconds: float) -> None:
        """Keep that much, at most half of all, for the last measurement: before against after."""
        self._reserved = min(seconds, self.seconds / 2)


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
