"""The probes at the end of a run, on its own roles: see `rampline.training.timings`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext

from rampline.config import RunConfig
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory
from rampline.training.engine import CALLS_PER_WORKER, Engine
from rampline.training.tensorboard import profile
from rampline.training.timings import (
    CACHED,
    FEWEST_ROUNDS,
    KINDS,
    MOST_ROUNDS,
    PIPELINE,
    REAL,
    ROUNDS,
    StrategyProbes,
    Timings,
)

LONGEST_ROUND_SECONDS = 1.5
# A round as short as a tick of the scheduler says nothing.
SHORTEST_ROUND_SECONDS = 0.02
# All rounds of a probe whose steps are quick.
ENOUGH_SECONDS = 1.0

PROFILED_STEPS = 5

Probe = Callable[[int], float]


def measure_run(
    config: RunConfig, engine: Engine, run_directory: RunDirectory, events: EventWriter | None, *, workers: int
) -> None:
    """Measure where a step's time goes, and capture a profile, as the run says; all `workers` call it alike.

    The chief, who has `events`, writes `probes.json`, and the profile below `tensorboard/`. With fewer workers than the
    run has in full there are no probes: one replica's work, as it is measured, is no share of theirs.
    """
    if config.explain.steps and workers < config.cluster.workers:
        if events:
            fewer = f"the run ended with {workers} of {config.cluster.workers} workers"
            events.write("warning", message=f"where a step's time goes is not measured: {fewer}")
    elif config.explain.steps:
        probes = probe_strategy(config, engine)
        if events:
            probes.write(run_directory.probes_file)
    if config.profile:
        _profile(config, engine, run_directory, events)


def _profile(config: RunConfig, engine: Engine, run_directory: RunDirectory, events: EventWriter | None) -> None:
    probe, steps = engine.make_probe(REAL), 1 if config.is_synchronous else config.cluster.workers
    probe(steps)
    profiling = nullcontext(lambda number: nullcontext())
    if events:
        profiling = profile(run_directory.tensorboard, warn=lambda message: events.write("warning", message=message))
    with profiling as mark_step:
        for number in range(PROFILED_STEPS):
            with mark_step(number):
                probe(steps)


def probe_strategy(config: RunConfig, engine: Engine) -> StrategyProbes:
    """Measure the pipeline alone, a cached batch and the real thing, in turns; all roles call it alike."""
    probes = {kind: engine.make_probe(kind, config.global_batch_size) for kind in KINDS}
    timings = measure_in_turns(probes, config, engine.average)
    return StrategyProbes(pipeline=timings[PIPELINE], cached=timings[CACHED], real=timings[REAL])


def measure_in_turns(
    probes: Mapping[str, Probe],
    config: RunConfig,
    average: Callable[[float], float],
    *,
    rounds: int | None = None,
    longest_seconds: float = LONGEST_ROUND_SECONDS,
) -> dict[str, Timings]:
    """Rounds in which the probes take turns, each with as many steps in every round, after it has compiled.

    Args:
        probes: seconds per step of so many steps.
        config: the run, whose `explain.steps` are spread over the rounds in whole calls of `steps_per_call`; where they
            are quick, there are more.
        average: the mean over all roles, which must agree on the number of steps.
        rounds: how many; by default more where steps are quick. Fewer where a single step takes longer than a round.
        longest_seconds: of one round of one probe: a slow network is measured on fewer steps.
    """
    seconds = {name: _seconds_per_step(probe, config, average) for name, probe in probes.items()}
    steps = {name: _steps_per_round(config, seconds[name], longest_seconds) for name in probes}
    slowest = max(seconds[name] * steps[name] for name in probes)
    wanted = rounds or min(MOST_ROUNDS, max(ROUNDS, int(ENOUGH_SECONDS / slowest)))
    rounds = min(wanted, max(FEWEST_ROUNDS, int((rounds or ROUNDS) * longest_seconds / slowest)))
    made = [{name: average(probe(steps[name])) for name, probe in probes.items()} for _ in range(rounds)]
    return {
        name: Timings(milliseconds=tuple(1000 * round_[name] for round_ in made), steps=rounds * steps[name])
        for name in probes
    }


def _calls_at_once(config: RunConfig) -> int:
    """On parameter servers for every worker some."""
    return 1 if config.is_synchronous else CALLS_PER_WORKER * config.cluster.workers


def _seconds_per_step(probe: Probe, config: RunConfig, average: Callable[[float], float]) -> float:
    probe(_calls_at_once(config))
    return average(probe(_calls_at_once(config)))


def _steps_per_round(config: RunConfig, seconds: float, longest: float) -> int:
    """Whole calls, so that a step has its share of what a call costs, as far as a round has room for one."""
    # With `auto` a probe makes its round in one call.
    per_call = config.steps_per_call if config.engine == "loop" and isinstance(config.steps_per_call, int) else 1
    wanted, most = max(config.explain.steps / ROUNDS, SHORTEST_ROUND_SECONDS / seconds), max(1, int(longest / seconds))
    whole = next(steps for steps in (per_call * _calls_at_once(config), per_call, 1) if steps <= most)
    return min(math.ceil(wanted / whole), most // whole) * whole
