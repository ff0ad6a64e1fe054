"""Successive halving: how far each run of a grid with `search: halving` is trained, from what its folder says.

All runs train to the first rung, an early epoch; the best third of them goes on to the next rung, three times as far,
and so on to the last epoch (Jamieson and Talwalkar 2016; a third as in Hyperband, Li et al. 2018). At a rung a run
rests: it has a checkpoint, and no process. What it had reached there stays in `rungs/EPOCH.json`, so an execution that
is continued comes to the same decisions.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rampline.files import read_json
from rampline.record.run_directory import Goal, RunDirectory
from rampline.study.definition import Study, StudyRun
from rampline.study.execution_file import Execution

ETA = 3
# The first epoch holds the tracing: the images/s of a run that had no other could not be compared.
FIRST_RUNG = 2
# In the words that say why a run goes no further than a rung, which they begin with.
HALVED = "and halving keeps"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How far one training has come.

    Attributes:
        goal: the epoch that it may train to, as it was told last; 0 for none.
        rungs: best validation accuracy up to each rung at which it has rested.
        final: best validation accuracy of one that is complete.
        has_failed: whether it has failed since the study was started, or continued.
    """

    goal: int = 0
    rungs: Mapping[int, float] = field(default_factory=dict)
    final: float | None = None
    has_failed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it trains no further."""
        return self.final is not None or self.has_failed

    def accuracy_at(self, rung: int) -> float | None:
        """Best validation accuracy up to a rung, or to its end before that; `None` for one that failed on the way."""
        return self.rungs.get(rung, self.final)


Standings = Mapping[str, Mapping[str, Standing]]


def list_rungs(runs: int, epochs: int) -> list[tuple[int, int]]:
    """The rungs of so many runs: how many of them train, and to which epoch; the last one is `epochs`.

    Such as `[(9, 2), (3, 6), (1, 18)]` for 9 runs of 18 epochs. There is none before epoch `FIRST_RUNG`: of 9 runs of 9
    epochs, 3 make all of these.
    """
    halvings, last = 0, runs
    while last > 1:
        halvings, last = halvings + 1, _kept(last)
    rungs = []
    for number in range(halvings, 0, -1):
        if (epoch := epochs // ETA**number) >= FIRST_RUNG:
            rungs.append((runs, epoch))
            runs = _kept(runs)
    return [*rungs, (runs, epochs)]


def _kept(runs: int) -> int:
    return max(1, runs // ETA)


def find_goals(runs: Standings, epochs: int) -> dict[str, Goal]:
    """To which epoch trainings of a grid may train now, or why they are over; those that wait for others have none.

    Runs are ranked by their best validation accuracy so far, which is that of the checkpoint that they keep; of equals
    the first is the better. One that is over before a rung is ranked by what it has reached. One that was told to train
    beyond a rung stays in, though another, which had failed and was trained again, may get past it.

    Args:
        runs: the trainings of each run by name, in the order of the study; several of one that is repeated, which is
            ranked by the median of those that have not failed. One whose trainings all have is the last.
        epochs: of each run.
    """
    goals: dict[str, Goal] = {}
    alive = dict(runs)
    for _, rung in list_rungs(len(runs), epochs):
        late = [
            name
            for trainings in alive.values()
            for name, training in trainings.items()
            if not training.is_over and rung not in training.rungs
        ]
        if late:
            return goals | {name: Goal(epoch=rung) for name in late}
        accuracies = {run: _median_at(rung, trainings.values()) for run, trainings in alive.items()}
        ranked = sorted(alive, key=lambda run: accuracies[run], reverse=True)
        for place, run in enumerate(ranked, start=1):
            if place <= _kept(len(ranked)) or any(training.goal > rung for training in alive[run].values()):
                continue
            rank = f"ranked {place} of {len(ranked)} by validation accuracy ({accuracies[run]:.4f})"
            stopped = f"after epoch {rung} of {epochs}: {rank}, {HALVED} {_kept(len(ranked))}"
            resting = [name for name, training in alive[run].items() if not training.is_over]
            goals |= {name: Goal(epoch=rung, stopped=stopped) for name in resting}
            del alive[run]
    return goals


def _median_at(rung: int, trainings: Iterable[Standing]) -> float:
    known = [accuracy for training in trainings if (accuracy := training.accuracy_at(rung)) is not None]
    return statistics.median(known) if known else -1.0


def runs_of(study: Study, grid: str) -> dict[str, list[StudyRun]]:
    """The trainings of each run of a grid."""
    runs: dict[str, list[StudyRun]] = {}
    for run in study.runs:
        if run.halving == grid:
            runs.setdefault(run.listed, []).append(run)
    return runs


def describe_rungs(study: Study, run: StudyRun) -> str:
    """When halving stops a run, such as `after epoch 2 or 6 unless it is among the best third of grid g`.

    Empty for a run that it does not stop.
    """
    rungs = list_rungs(len(runs_of(study, run.halving)), run.config.epochs) if run.halving else []
    epochs = " or ".join(str(epoch) for _, epoch in rungs[:-1])
    return f"after epoch {epochs} unless it is among the best third of grid {run.halving}" if epochs else ""


def turns(execution: Execution) -> Iterator[tuple[StudyRun, Goal | None]]:
    """The runs in the order in which they are trained, or trained further, each with its goal where halving sets one.

    What a run of a grid has come to decides what the others do, so it is to be trained before the next one is asked
    for. One that has not come to its goal by then has failed. A run waits until the one that it starts from is over.
    """
    left, failed = list(execution.study.runs), set[str]()
    while left:
        goals = _goals_of(execution, failed)
        names = {run.name for run in left}
        run = next(run for run in left if run.starts_from not in names and _has_turn(run, execution, goals))
        directory, goal = execution.directory(run.name), goals.get(run.name)
        if goal:
            goal.write(directory.goal_file)
        yield run, goal
        if run.halving and not directory.is_at_goal:
            failed.add(run.name)
        if not run.halving or run.name in failed or directory.is_complete:
            left.remove(run)


def _has_turn(run: StudyRun, execution: Execution, goals: Mapping[str, Goal]) -> bool:
    return not run.halving or run.name in goals or execution.directory(run.name).is_complete


def _goals_of(execution: Execution, failed: Collection[str]) -> dict[str, Goal]:
    goals: dict[str, Goal] = {}
    for grid in dict.fromkeys(run.halving for run in execution.study.runs if run.halving):
        runs = runs_of(execution.study, grid)
        epochs = next(iter(runs.values()))[0].config.epochs
        standings = {
            name: {run.name: _standing(execution.directory(run.name), run.name in failed) for run in trainings}
            for name, trainings in runs.items()
        }
        goals |= find_goals(standings, epochs)
    return goals


def _standing(directory: RunDirectory, has_failed: bool) -> Standing:
    goal = directory.read_goal()
    return Standing(
        goal=goal.epoch if goal else 0,
        rungs={int(file.stem): read_json(file)["best_val_accuracy"] for file in directory.rungs.glob("*.json")},
        final=read_json(directory.result_file)["best_val_accuracy"] if directory.is_complete else None,
        has_failed=has_failed,
    )
