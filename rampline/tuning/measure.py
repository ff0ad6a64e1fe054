"""The process that measures the trials of one request: see `rampline.tuning.process`, which starts it."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf

from rampline.cluster.exit_status import leave, one_line
from rampline.events import EventWriter
from rampline.explain.probes import CACHED
from rampline.training.strategy import configure_devices, make_strategy
from rampline.tuning.contender import Contender, Contenders
from rampline.tuning.memory import available_bytes, be_first_to_end, is_out_of_memory, lacking_bytes, peak_bytes
from rampline.tuning.rounds import Rounds
from rampline.tuning.trial import DOES_NOT_FIT, FAILED, MEASURED, NOT_TRIED, Request, Work

ROUNDS = 5
ROUND_SECONDS = 0.5
# Of one call: a longer one has nothing left to save, and an interruption waits for its end.
LONGEST_CALL_SECONDS = 2.0
# A candidate that is below this share of the speed before in two rounds is not measured any further.
HOPELESS = 0.8
GIB = 2**30


def measure_trials(folder: Path) -> NoReturn:
    """Measure what `request.json` of `folder` asks for, telling in `events.jsonl`, and end the process.

    Events: `ready` (the settings before are compiled), `input` (`share` of their step that is lost to the input, and
    their `images_per_second` by round), `begins` and `trial` of each candidate by its `number`.
    """
    be_first_to_end()
    began, request = time.monotonic(), Request.read(folder)
    configure_devices(request.before.config)
    bench = _Bench(request, EventWriter(folder / "events.jsonl"))
    bench.warm_up()
    last_seconds = 0.0
    for number, work in enumerate(request.candidates):
        begins = time.monotonic()
        # However short the time, a search has at least one trial.
        is_needed = request.with_input and number == 0
        if begins + last_seconds - began > request.seconds and not is_needed:
            break
        bench.events.write("begins", number=number)
        bench.events.write("trial", number=number, **bench.try_candidate(work))
        last_seconds = time.monotonic() - begins
    leave(0)  # the pipelines of the trials are endless: nobody waits for their destructors


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
