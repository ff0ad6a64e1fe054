"""Settings that are timed: real training steps, pipeline and all, under a strategy that all contenders share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import keras
import tensorflow as tf

from rampline.cluster.tf_config import ALONE
from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.explain.probes import CACHED, REAL
from rampline.training.engine import Engine
from rampline.training.run import make_engine
from rampline.training.state import TrainingState, make_state
from rampline.tuning.trial import Work

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
