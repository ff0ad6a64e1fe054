"""What the controller needs of an engine, and what an engine tells it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rampline.training.state import TrainingState
from rampline.training.step import EXAMPLES, LOSS_SUM

# Scheduled ahead for each parameter-server worker.
CALLS_PER_WORKER = 4


@dataclass(frozen=True, kw_only=True)
class StepsDone:
    """The outcome of consecutive steps.

    Attributes:
        sums: (steps, 4), of each global batch, see `rampline.training.step.sums_of`.
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

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """Train `steps` steps from 0-based `first_step`, telling about them as they end; ends early with a `stop`."""
        ...

    def evaluate(self, split: str) -> np.ndarray:
        """(4,) sums over every example of `split`, once; moving statistics must have been averaged.

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

    def write_statistics(self, statistics: np.ndarray) -> None:
        """Give each replica its own row again."""
        ...

    def check_agreement(self, step: int) -> None:
        """Make sure that all roles have come back to the same step.

        Raises:
            RunFailed: when they have not.
        """
        ...

    def average(self, value: float) -> float:
        """The mean of the roles' values, the same on each of them."""
        ...

    def make_probe(self, kind: str) -> Callable[[int], float]:
        """A function that makes so many steps and returns the seconds that each took; its first call compiles.

        All roles call it alike. Weights and step counter change: the training must be over.

        Args:
            kind: see `rampline.explain.probes`.

        Raises:
            Preempted: by the function, when a role was asked to stop.
        """
        ...

    def finish(self) -> None:
        """Wait until every role has come this far."""
        ...
