"""The probes at the end of a run, on its own roles: see `rampline.training.timings`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext

from rampline.config import RunConfig
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory
from rampline.training.engine import CALLS_PER_WORKER, Engine
from rampline.training.tensorboard import MarkStep, profile
from rampline.training.timings import CACHED, KINDS, PIPELINE, REAL, ROUNDS, StrategyProbes, Timings

LONGEST_ROUND_SECONDS = 4.0

PROFILED_STEPS = 5

Probe = Callable[[int], float]


def measure_run(config: RunConfig, engine: Engine, run_directory: RunDirectory, events: EventWriter | None) -> None:
    """Measure where a step's time goes, and capture a profile, as the run says; all roles call it alike.

    The chief, who has `events`, writes `probes.json`, and the profile below `tensorboard/`.
    """
    if config.explain.steps:
        probes = probe_strategy(config, engine)
        if events:
            probes.write(run_directory.probes_file)
    if config.profile:
        _profile(config, engine, run_directory, events)


def _profile(config: RunConfig, engine: Engine, run_directory: RunDirectory, events: EventWriter | None) -> None:
    probe, steps = engine.make_probe(REAL), 1 if config.is_synchronous else config.cluster.workers
    probe(steps)
    with _profiling(run_directory, events) if events else nullcontext(lambda number: nullcontext()) as mark_step:
        for number in range(PROFILED_STEPS):
            with mark_step(number):
                probe(steps)


def _profiling(run_directory: RunDirectory, events: EventWriter) -> AbstractContextManager[MarkStep]:
    return profile(run_directory.tensorboard, warn=lambda message: events.write("warning", message=message))


def probe_strategy(config: RunConfig, engine: Engine) -> StrategyProbes:
    """Measure the pipeline alone, a cached batch and the real thing, in turns; all roles call it alike."""
    probes = {kind: engine.make_probe(kind) for kind in KINDS}
    timings = measure_in_turns(probes, config, engine.average)
    return StrategyProbes(pipeline=timings[PIPELINE], cached=timings[CACHED], real=timings[REAL])


def measure_in_turns(
    probes: Mapping[str, Probe],
    config: RunConfig,
    average: Callable[[float], float],
    *,
    rounds: int = ROUNDS,
    longest_seconds: float = LONGEST_ROUND_SECONDS,
) -> dict[str, Timings]:
    """Rounds in which the probes take turns, each with as many steps in every round, after it has compiled.

    Args:
        probes: seconds per step of so many steps.
        config: the run, whose `explain.steps` are spread over the rounds in whole calls of `steps_per_call`.
        average: the mean over all roles, which must agree on the number of steps.
        rounds: how many.
        longest_seconds: of one round of one probe: a slow network is measured on fewer steps.
    """
    steps = {name: _steps_per_round(probe, config, average, longest_seconds) for name, probe in probes.items()}
    made = [{name: average(probe(steps[name])) for name, probe in probes.items()} for _ in range(rounds)]
    return {
        name: Timings(milliseconds=tuple(1000 * round_[name] for round_ in made), steps=rounds * steps[name])
        for name in probes
    }


def _steps_per_round(probe: Probe, config: RunConfig, average: Callable[[float], float], longest: float) -> int:
    """Whole calls, so that a step has its share of what a call costs; on parameter servers for every worker some."""
    workers = 1 if config.is_synchronous else CALLS_PER_WORKER * config.cluster.workers
    probe(workers)
    seconds = average(probe(workers))
    # With `auto` a probe makes its round in one call.
    per_call = config.steps_per_call if config.engine == "loop" and isinstance(config.steps_per_call, int) else 1
    wanted = math.ceil(config.explain.steps / ROUNDS / (per_call * workers)) * per_call * workers
    return max(1, min(wanted, int(longest / seconds)))
