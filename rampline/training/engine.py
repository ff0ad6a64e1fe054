"""What the controller needs of an engine, and what an engine tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rampline.training.state import TrainingState


@dataclass(frozen=True, kw_only=True)
class StepsDone:
    """The outcome of consecutive steps.

    Attributes:
        sums: (steps, 3) float32: loss sum, correct predictions and examples of each global batch.
        input_wait_seconds: time the steps waited for their batch; `None` where it cannot be measured.
    """

    sums: np.ndarray
    input_wait_seconds: float | None

    @property
    def losses(self) -> np.ndarray:
        """(steps,) mean loss of each global batch."""
        return self.sums[:, 0] / self.sums[:, 2]


class Engine(Protocol):
    """Runs steps and evaluations under one strategy."""

    state: TrainingState

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """Train `steps` steps from 0-based `first_step`, telling about them as they end."""
        ...

    def evaluate(self, split: str) -> np.ndarray:
        """(3,) sums over every example of `split`, once; moving statistics must have been averaged."""
        ...

    def average_moving_statistics(self) -> None:
        """Make BatchNorm statistics the mean over all replicas and workers, on each of them."""
        ...

    def finish(self) -> None:
        """Wait until every role has come this far."""
        ...
