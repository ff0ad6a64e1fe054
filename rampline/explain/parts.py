"""From probes to parts that add up: of one training step, and of a whole run's wall time. No TensorFlow.

With R the real step of a whole batch, B the step on a cached one, A one replica alone, H the same with half its batch,
and E as many replicas at once in processes of their own (for parameter servers A, H and E are divided by the workers,
which take turns at the updates):

- *input* = R - B: what the pipeline adds, waiting and sharing the processor alike;
- *sync* = B - E: the all-reduce, or the variables on the parameter servers, and what the strategy adds;
- *contention* = E - A: replicas that share processors and memory, which no strategy can help;
- *other* = the part of A that half a batch does not halve, 2H - A: launching operations, Python, the update;
- *compute* = the rest of A, which grows with the batch.

They add up to R. A part that is not told apart from its noise, see `noise_of_parts`, may come out below 0: nothing is
cut off, as that would put its noise into its neighbours.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rampline.record.events import with_attempt, without_tracing
from rampline.record.metric import interval_of_median
from rampline.training.timings import ReplicaProbes, StrategyProbes


@dataclass(frozen=True, kw_only=True)
class StepParts:
    """Milliseconds of one training step; they add up to the step."""

    input: float
    compute: float
    contention: float
    sync: float
    other: float

    @property
    def total(self) -> float:
        """The whole step."""
        return sum(dataclasses.astuple(self))

    def scaled(self, factor: float) -> StepParts:
        """Every part times `factor`."""
        return StepParts(**{name: value * factor for name, value in dataclasses.asdict(self).items()})

    def of_share(self, share: float) -> StepParts:
        """Those of a step with that share of the examples: what is done once per step takes what it took."""
        smaller = {name: share * getattr(self, name) for name in ("input", "compute", "contention")}
        return dataclasses.replace(self, **smaller)


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """Seconds of a run's wall time; they add up to it.

    Attributes:
        startup: from the launch of the roles to the first step: imports, rendezvous, model, restored checkpoint.
        tracing: building the graphs: what comes before the first step, and what the first epoch of each attempt
            takes longer than the others.
        steps: the run's steps, each as long as its usual one.
        evaluation: validation after each epoch.
        checkpoint: saving.
        logging: writing events and TensorBoard scalars.
        unexplained: the rest; negative where the usual step was slower than the mean.
    """

    startup: float
    tracing: float
    steps: float
    evaluation: float
    checkpoint: float
    logging: float
    unexplained: float

    @property
    def total(self) -> float:
        """The wall time."""
        return sum(dataclasses.astuple(self))


def step_parts(
    strategy: StrategyProbes, replica: ReplicaProbes | None, *, is_alone: bool = False, updates_at_once: int = 1
) -> StepParts:
    """The parts of a step.

    Args:
        strategy: the probes on the full strategy.
        replica: those of one replica; without them all but the input counts as compute.
        is_alone: whether the run has one replica and nothing to keep in step with, so that B is split and not A.
        updates_at_once: workers that update independently of each other (parameter servers), else 1.
    """
    real, busy = strategy.real.median, strategy.cached.median
    if replica is None:
        return StepParts(input=real - busy, compute=busy, contention=0.0, sync=0.0, other=0.0)
    alone = replica.alone.median / updates_at_once
    at_once = replica.at_once.median / updates_at_once if replica.at_once else alone
    work, own = (busy, busy) if is_alone else (at_once, alone)
    fixed = statistics.median(_fixed_shares(replica)) if replica.half else 0.0
    return StepParts(
        input=real - busy,
        compute=own * (1 - fixed),
        contention=work - own,
        sync=busy - work,
        other=own * fixed,
    )


def noise_of_parts(
    strategy: StrategyProbes, replica: ReplicaProbes | None, *, is_alone: bool = False, updates_at_once: int = 1
) -> dict[str, float]:
    """Milliseconds of noise by part, of the parts that were measured; arguments as in `step_parts`.

    A part is the difference of two probes. Its noise is half of the interval that its median lies in, by the
    order of the rounds: see `interval_of_median`.
    """
    taken_in_turn = zip(strategy.real.milliseconds, strategy.cached.milliseconds, strict=True)
    noise = {"input": _half_range(r - b for r, b in taken_in_turn)}
    if replica is not None:
        parts = step_parts(strategy, replica, is_alone=is_alone, updates_at_once=updates_at_once)
        own = parts.compute + parts.other
        if replica.half is not None:
            noise |= dict.fromkeys(("other", "compute"), own * _half_range(_fixed_shares(replica)))
        if not is_alone:
            # These probes did not take turns.
            timings = replica.alone, replica.at_once or replica.alone
            alone, at_once = (_half_range(each.milliseconds) / updates_at_once for each in timings)
            noise["sync"] = math.hypot(_half_range(strategy.cached.milliseconds), at_once)
            if replica.at_once is not None:
                noise["contention"] = math.hypot(at_once, alone)
    return noise


def _fixed_shares(replica: ReplicaProbes) -> list[float]:
    """The share of a replica's step that its batch does not change, 2H / A - 1, of every round: both took turns."""
    half = replica.half.milliseconds if replica.half else ()
    return [2 * h / a - 1 for h, a in zip(half, replica.alone.milliseconds, strict=True)]


def _half_range(values: Iterable[float]) -> float:
    low, high = interval_of_median(values)
    return (high - low) / 2


def run_parts(events: Sequence[Mapping[str, Any]], result: Mapping[str, Any], *, step_milliseconds: float) -> RunParts:
    """The parts of a run's wall time."""
    epochs = _epochs_of(events)
    steady = [metrics["epoch_seconds"] for metrics in steady_epochs(events)]
    usual = statistics.median(steady or [result["steps"] / result["epochs"] * step_milliseconds / 1000])
    traced = (epochs[number]["epoch_seconds"] for number in {min(epochs), *_first_epochs(events)} & {*epochs})
    known = {
        "startup": sum(event.get("startup_seconds", 0.0) for event in events if event["event"] == "started"),
        "tracing": _before_first_step(events) + sum(max(0.0, seconds - usual) for seconds in traced),
        "steps": result["steps"] * step_milliseconds / 1000,
        "evaluation": sum(metrics.get("validation_seconds") or 0.0 for metrics in epochs.values()),
        "checkpoint": _checkpoint_seconds(events),
        "logging": result.get("logging_seconds", 0.0),
    }
    return RunParts(**known, unexplained=result["wall_seconds"] - sum(known.values()))


def steady_epochs(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What the run's epochs have measured, of those that hold no tracing; of a run of one epoch none."""
    epochs = _epochs_of(events)
    return [epochs[number] for number in without_tracing(sorted(epochs), _first_epochs(events))]


def _epochs_of(events: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """What each epoch has measured, as it was trained last; those that an attempt has lost may be trained no more."""
    epochs: dict[int, Mapping[str, Any]] = {}
    for event in events:
        if event["event"] == "started":
            first = event.get("first_epoch", math.inf)
            epochs = {number: metrics for number, metrics in epochs.items() if number < first}
        elif event["event"] == "epoch":
            epochs[event["epoch"]] = event["metrics"]
    return epochs


def _first_epochs(events: Sequence[Mapping[str, Any]]) -> list[int]:
    found: list[int] = []
    for event in events:
        if event["event"] == "started":
            found = with_attempt(found, event.get("first_epoch", 1))
    return found


def _before_first_step(events: Sequence[Mapping[str, Any]]) -> float:
    """Seconds from the end of the start-up to the first step: `Model.fit` builds its functions there."""
    first = next(number for number, event in enumerate(events) if event["event"] == "epoch")
    # The attempt that made the epoch; those that were lost before it are in nobody's time.
    begin = max((number for number in range(first) if events[number]["event"] == "started"), default=None)
    if begin is None:
        return 0.0
    metrics, started = events[first]["metrics"], events[begin]
    in_epoch = metrics["epoch_seconds"] + (metrics.get("validation_seconds") or 0.0)
    in_epoch += _checkpoint_seconds(events[begin:first])
    # Events of older runs have the clock of the wall alone, which may have been set between the two.
    clock = "monotonic" if "monotonic" in events[first] and "monotonic" in started else "time"
    return max(0.0, events[first][clock] - started[clock] - in_epoch)


def _checkpoint_seconds(events: Iterable[Mapping[str, Any]]) -> float:
    return sum(event.get("seconds", 0.0) for event in events if event["event"] == "checkpoint")
