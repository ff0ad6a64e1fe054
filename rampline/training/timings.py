"""What the probes measure, and how it is kept: milliseconds per step. No TensorFlow.

A run's own roles measure after its last epoch, on the full strategy (`probes.json`):

- `pipeline`: the input pipeline alone, batches are fetched and thrown away;
- `cached`: training on one batch that stays in memory;
- `real`: training as it is, pipeline and all.

All batches are whole ones, or as large as the data makes them: figures of batches of other sizes cannot be compared.

A forecast's roles also measure `update`: sum over the replicas, and update, of gradients that are there.

Processes of their own then measure one replica's share of the work, with no all-reduce (`replica.json`): alone, with
half the batch, and in as many processes at once as the run has replicas here, which is the machine's own ceiling.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rampline.files import JsonData

PIPELINE, CACHED, REAL = "pipeline", "cached", "real"
UPDATE = "update"
KINDS = (PIPELINE, CACHED, REAL)
# Where steps are slow there are fewer, where they are quick, more: a round in which the machine was busy says nothing.
ROUNDS, FEWEST_ROUNDS, MOST_ROUNDS = 9, 3, 21


@dataclass(frozen=True, kw_only=True)
class Timings:
    """Milliseconds per step of one probe: one figure per round, the probes taking turns."""

    milliseconds: tuple[float, ...]
    steps: int

    @property
    def median(self) -> float:
        """The figure that counts."""
        return statistics.median(self.milliseconds)


@dataclass(frozen=True, kw_only=True)
class StrategyProbes(JsonData):
    """The probes on the full strategy; a step is an update of the weights."""

    pipeline: Timings
    cached: Timings
    real: Timings


@dataclass(frozen=True, kw_only=True)
class ReplicaProbes(JsonData):
    """The work of one replica, in processes of their own.

    Attributes:
        alone: one replica's batch, one process.
        half: half that batch, one process; `None` where the batch is one example.
        at_once: one replica's batch in `processes` processes at the same time, the mean over them; `None` for one.
        processes: how many.
        batch_size: examples of one replica.
    """

    alone: Timings
    half: Timings | None
    at_once: Timings | None
    processes: int
    batch_size: int


def mean_timings(timings: Sequence[Timings]) -> Timings:
    """The mean of several processes that measured at the same time, round by round."""
    rounds = zip(*(part.milliseconds for part in timings), strict=True)
    return Timings(milliseconds=tuple(statistics.fmean(round_) for round_ in rounds), steps=timings[0].steps)
