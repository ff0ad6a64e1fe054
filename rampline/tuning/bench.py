"""The process that measures the trials of one request: see `rampline.tuning.tuner`, which starts it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.jobs.exit_status import one_line
from rampline.jobs.job import EVENTS
from rampline.jobs.memory import available_bytes, is_out_of_memory, lacking_bytes, peak_bytes
from rampline.jobs.tf_config import ALONE
from rampline.record.events import EventWriter
from rampline.training.engine import Engine
from rampline.training.state import TrainingState, make_state
from rampline.training.strategy import configure_devices, make_strategy
from rampline.training.timings import CACHED, REAL
from rampline.training.train import make_engine
from rampline.tuning.trial import DOES_NOT_FIT, FAILED, MEASURED, NOT_TRIED, Request, Rounds, Work

# So that a probe of n steps is one call of n steps: one compiled function serves every number of steps per call.
NO_LIMIT = 1_000_000


class Contenders:
    """Makes contenders of one process; those that differ in their calls alone share what was compiled."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self._states: dict[str, TrainingState] = {}
        self._engines: dict[tuple[RunConfig, str], Engine] = {}
        self._loops: dict[tuple[RunConfig, str, str], _Loop] = {}

    def make(self, work: Work, kind: str = REAL) -> Contender:
        """The contender of `work`; nothing is compiled before its first steps."""
        config = work.config
        steps_per_call = config.steps_per_call if config.engine == "loop" else None
        if isinstance(steps_per_call, int):
            config = dataclasses.replace(config, steps_per_call=NO_LIMIT)
        key = (config, work.dataset, kind)
        if key not in self._loops:
            self._loops[key] = self._make_loop(config, PreparedDataset.open(Path(work.dataset)), kind)
        return Contender(self._loops[key], steps_per_call if isinstance(steps_per_call, int) else None)

    def _make_loop(self, config: RunConfig, dataset: PreparedDataset, kind: str) -> _Loop:
        keras.mixed_precision.set_global_policy(config.precision)
        key = (config, str(dataset.directory))
        if key not in self._engines:
            state = self._make_state(config, dataset)
            self._engines[key] = make_engine(config, dataset, self._strategy, state, ALONE)
        probe = self._engines[key].make_probe(kind)
        return _Loop(probe, config, dataset.splits["train"], is_cached=kind == CACHED)

    def _make_state(self, config: RunConfig, dataset: PreparedDataset) -> TrainingState:
        """Of each precision one: neither the batch nor the input changes the variables."""
        if config.precision not in self._states:
            self._states[config.precision] = make_state(config, dataset, self._strategy)
        return self._states[config.precision]


class _Loop:
    """A probe, and how many images its steps have: the last batch of an epoch may be smaller."""

    def __init__(self, probe: Callable[[int], float], config: RunConfig, examples: int, *, is_cached: bool) -> None:
        self._probe, self._config, self._examples = probe, config, examples
        self._is_cached, self._next_step = is_cached, 0

    def run(self, steps: int) -> tuple[int, float]:
        """Images and seconds of the next `steps` steps."""
        seconds = steps * self._probe(steps)
        if self._is_cached:
            return steps * self._images_until(1), seconds
        # Model.fit begins anew each time, and is timed from the end of its first step.
        first = 1 if self._config.engine == "fit" else self._next_step
        self._next_step = first + steps
        return self._images_until(first + steps) - self._images_until(first), seconds

    def _images_until(self, step: int) -> int:
        epochs, steps = divmod(step, self._config.steps_per_epoch(self._examples))
        return epochs * self._examples + steps * self._config.global_batch_size


class Contender:
    """Timed steps in calls of `steps_per_call`; `None` leaves that to the engine."""

    def __init__(self, loop: _Loop, steps_per_call: int | None) -> None:
        self._loop, self.steps_per_call = loop, steps_per_call

    def run(self, steps: int) -> tuple[int, float]:
        """Images and seconds of `steps` steps."""
        most = self.steps_per_call or steps
        parts = [self._loop.run(min(most, steps - done)) for done in range(0, steps, most)]
        return sum(images for images, _ in parts), math.fsum(seconds for _, seconds in parts)


ROUNDS = 5
ROUND_SECONDS = 0.5
# Of one call: a longer one has nothing left to save, and an interruption waits for its end.
LONGEST_CALL_SECONDS = 2.0
# A candidate that is below this share of the speed before in two rounds is not measured any further.
HOPELESS = 0.8
GIB = 2**30


def measure_trials(folder: Path, request: dict[str, Any]) -> None:
    """The job of the tuner: measure what a `Request` asks for, telling in `events.jsonl` of `folder`.

    Events: `ready` (the settings before are compiled), `input` (`share` of their step that is lost to the input, and
    their `images_per_second` by round), `begins` and `trial` of each candidate by its `number`.
    """
    began, wanted = time.monotonic(), Request.from_dict(request)
    configure_devices(wanted.before.config)
    bench = _Bench(wanted, EventWriter(folder / EVENTS))
    bench.warm_up()
    last_seconds = 0.0
    for number, work in enumerate(wanted.candidates):
        begins = time.monotonic()
        # However short the time, a search has at least one trial.
        is_needed = wanted.with_input and number == 0
        if begins + last_seconds - began > wanted.seconds and not is_needed:
            break
        bench.events.write("begins", number=number)
        bench.events.write("trial", number=number, **bench.try_candidate(work))
        last_seconds = time.monotonic() - begins


class _Bench:
    """The settings before, kept ready, and what is tried against them."""

    def __init__(self, request: Request, events: EventWriter) -> None:
        self.events = events
        self._request = request
        self._contenders = Contenders(make_strategy(request.before.config))
        self._before = self._contenders.make(request.before)
        self._seconds_per_step = 0.0
        self._peaks: list[int] = []
        self._is_full = False

    def warm_up(self) -> None:
        """Compile the settings before, and measure what the input takes of their step, if that is wanted."""
        self._seconds_per_step = _compile(self._before)
        self._peaks.append(peak_bytes())
        self.events.write("ready", seconds_per_step=self._seconds_per_step)
        if self._request.with_input:
            cached = self._contenders.make(self._request.before, CACHED)
            _compile(cached)
            rounds = _compare(self._before, cached, self._seconds_per_step)
            self.events.write("input", share=1 - 1 / rounds.ratio, images_per_second=rounds.before)

    def try_candidate(self, work: Work) -> dict[str, Any]:
        """The outcome of one candidate: its status, and the figures or the reason why there are none."""
        refusal = self._refuse(work)
        if refusal:
            return refusal
        _reset_gpu_peak()
        try:
            contender = self._contenders.make(work)
            rounds = _compare(self._before, contender, max(self._seconds_per_step, _compile(contender)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next candidate may work
            return self._fail(error)
        self._peaks.append(peak_bytes())
        figures = dataclasses.asdict(dataclasses.replace(rounds, memory_bytes=_gpu_peak() or peak_bytes()))
        return {"status": MEASURED, "rounds": figures}

    def _refuse(self, work: Work) -> dict[str, Any] | None:
        calls = work.config.steps_per_call
        is_new = calls != self._request.before.config.steps_per_call
        if is_new and isinstance(calls, int) and calls * self._seconds_per_step > LONGEST_CALL_SECONDS:
            return {"status": NOT_TRIED, "reason": f"a call would take more than {LONGEST_CALL_SECONDS:.0f} s"}
        if not self._is_larger(work):
            return None
        lacking = 0 if tf.config.list_physical_devices("GPU") else lacking_bytes(self._peaks, available_bytes())
        if self._is_full:
            return {"status": NOT_TRIED, "reason": "larger than one that does not fit"}
        if lacking:
            self._is_full = True
            return {"status": DOES_NOT_FIT, "reason": f"about {lacking / GIB:.1f} GiB of memory are missing"}
        return None

    def _is_larger(self, work: Work) -> bool:
        own = self._request.before.config.per_replica_batch_size
        return self._request.is_ladder and work.config.per_replica_batch_size > own

    def _fail(self, error: Exception) -> dict[str, Any]:
        is_memory = is_out_of_memory(error)
        if is_memory:
            self._is_full = True
        return {"status": DOES_NOT_FIT if is_memory else FAILED, "reason": one_line(error)}


def _compile(contender: Contender) -> float:
    """Make the first steps, which compile; returns the seconds of one step after that."""
    contender.run(1)
    contender.run(1)
    seconds = contender.run(1)[1]
    steps = max(1, min(16, int(ROUND_SECONDS / 2 / seconds)))
    return contender.run(steps)[1] / steps


def _compare(before: Contender, after: Contender, seconds_per_step: float) -> Rounds:
    """Rounds in which the two take turns, each the first one every other time."""
    figures: dict[Contender, list[float]] = {before: [], after: []}
    rounds = Rounds(before=(), after=())
    for number in range(ROUNDS):
        for contender in (before, after) if number % 2 == 0 else (after, before):
            images, seconds = contender.run(_steps_per_round(contender, seconds_per_step))
            figures[contender].append(images / seconds)
        rounds = Rounds(before=tuple(figures[before]), after=tuple(figures[after]))
        if number and max(rounds.ratios) < HOPELESS:
            break
    return rounds


def _steps_per_round(contender: Contender, seconds_per_step: float) -> int:
    """Whole calls, so that a step has its share of what a call costs, unless one is longer than a round may be."""
    wanted = max(2, math.ceil(ROUND_SECONDS / seconds_per_step))
    calls = contender.steps_per_call or 1
    if calls * seconds_per_step > LONGEST_CALL_SECONDS:
        return wanted
    return calls * math.ceil(wanted / calls)


def _gpu_peak() -> int | None:
    """Bytes of the fullest GPU since the last reset."""
    devices = tf.config.list_logical_devices("GPU")
    return max((tf.config.experimental.get_memory_info(_short(d.name))["peak"] for d in devices), default=None)


def _reset_gpu_peak() -> None:
    for device in tf.config.list_logical_devices("GPU"):
        tf.config.experimental.reset_memory_stats(_short(device.name))


def _short(name: str) -> str:
    return name.removeprefix("/device:")
