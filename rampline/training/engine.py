"""What the controller needs of an engine, and what an engine tells it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from rampline.files import leave_if_over
from rampline.record.events import drop_half_line
from rampline.training.objective import EXAMPLES, LOSS_SUM
from rampline.training.state import TrainingState

# Scheduled ahead for each parameter-server worker.
CALLS_PER_WORKER = 4


@dataclass(frozen=True, kw_only=True)
class StepsDone:
    """The outcome of consecutive steps.

    Attributes:
        sums: (steps, width), of each global batch, see `Objective.sums`.
        input_wait_seconds: time the steps waited for their batch; `None` where it cannot be measured.
        stop: whether all roles have agreed to stop after these steps.
        staleness: (steps,) int64, updates of other workers between a step's reading of the weights and its own update;
            `None` where all replicas update together, or it was not measured.
    """

    sums: np.ndarray
    input_wait_seconds: float | None
    stop: bool = False
    staleness: np.ndarray | None = None

    @property
    def losses(self) -> np.ndarray:
        """(steps,) mean loss of each global batch, without penalties."""
        return self.sums[:, LOSS_SUM] / self.sums[:, EXAMPLES]


class Engine(Protocol):
    """Runs steps and evaluations under one strategy."""

    state: TrainingState

    def run_steps(
        self, first_step: int, steps: int, is_enough: Callable[[], bool] = lambda: False
    ) -> Iterator[StepsDone]:
        """Train `steps` steps from 0-based `first_step`, telling about them as they end; ends early with a `stop`.

        That comes as soon as all roles know that one of them was asked to stop, or finds that it `is_enough`.
        """
        ...

    def evaluate(self, split: str) -> np.ndarray:
        """(width,) sums over every example of `split`, once; moving statistics must have been averaged.

        Raises:
            StopRequested: on all roles, when one of them was asked to stop.
        """
        ...

    def average_moving_statistics(self) -> None:
        """Make BatchNorm statistics the mean over all replicas and workers, on each of them."""
        ...

    def read_statistics(self) -> np.ndarray | None:
        """(replicas, total) moving statistics of each replica, on every role; `None` where there is one copy."""
        ...

    def write_statistics(self, statistics: np.ndarray | None) -> None:
        """Give each replica its own row again; all have what the model has where there are none."""
        ...

    def average(self, value: float) -> float:
        """The mean of the roles' values, the same on each of them."""
        ...

    def make_probe(self, kind: str, batch_size: int | None = None) -> Callable[[int], float]:
        """A function that makes so many steps and returns the seconds that each took; its first call compiles.

        All roles call it alike. Weights and step counter change: the training must be over.

        Args:
            kind: see `rampline.training.timings`; `update` for synchronous strategies alone.
            batch_size: examples of every global batch, or all that there are; by default the batches are the run's, of
                which the last one of an epoch may be smaller.

        Raises:
            StopRequested: by the function, when a role was asked to stop.
        """
        ...

    def finish(self) -> None:
        """Wait until every role has come this far."""
        ...


class StopRequested(Exception):
    """All roles have agreed to stop here."""


@dataclass(frozen=True, kw_only=True)
class StepCallback:
    """What an engine calls between its steps: it tells that it goes on, and asks whether to stop.

    Attributes:
        advance: called with a word for the kind of work before each call of a compiled function.
        should_stop: whether this role was asked to stop; a wish, which all workers must agree on.
    """

    advance: Callable[[str], None] = lambda _: None
    should_stop: Callable[[], bool] = lambda: False


# What a call is for, beside the kinds of probes.
TRAIN = "train"
# Calls take between this and its double: a stop is seen soon, and what a call costs, some milliseconds, is below 1 %.
LEAST_CALL_SECONDS = 0.5


class CallPacer:
    """Chooses the number of steps per call from what earlier calls took.

    Roles that train together must make the same calls: they give it the same figures.

    Args:
        setting: `steps_per_call` of the run, a number or `auto`.
        compiling: the first calls, whose time says nothing.
    """

    def __init__(self, setting: int | str, *, compiling: int = 1) -> None:
        self._steps = setting if isinstance(setting, int) else 1
        self._is_auto = self._is_growing = setting == "auto"
        self._compiling = compiling

    def longest(self, kind: str, steps: int) -> int:
        """Steps of the next call, when so many are left; a probe with `auto` makes them all at once."""
        return steps if self._is_auto and kind != TRAIN else min(self._steps, steps)

    def split(self, kind: str, steps: int) -> Iterator[tuple[int, int]]:
        """First step and number of steps of each call for so many steps."""
        start = 0
        while start < steps:
            count = self.longest(kind, steps - start)
            yield start, count
            start += count

    def note(self, steps: int, seconds: float) -> None:
        """A call of so many steps took that long; one that an epoch's end has cut short says nothing."""
        if not self._is_growing or steps < self._steps:
            return
        if self._compiling:
            self._compiling -= 1
        elif seconds < LEAST_CALL_SECONDS:
            self._steps *= 2
        else:
            self._is_growing = False


class ExamplesLog:
    """Appends a line per call: `{"attempt", "first_step", "examples": [[index, …] per step]}`.

    Args:
        path: `RUN_DIR/examples/ROLE-INDEX.jsonl`; a restarted role appends to it.
        attempt: number of the run's attempt, from 1.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_half_line(path)
        self._path, self._attempt = path, attempt

    def append(self, first_step: int, indices: np.ndarray) -> None:
        """Add (steps, rows) int64 indices of this role's replicas; -1 marks a row that counted for nothing."""
        examples = [[int(i) for i in row if i >= 0] for row in indices]
        line = json.dumps({"attempt": self._attempt, "first_step": first_step, "examples": examples})
        leave_if_over()
        with open(self._path, "a") as file:
            file.write(line + "\n")
