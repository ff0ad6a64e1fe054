"""Our training loop for `parameter_server`: the chief schedules steps by number, any worker carries them out.

A worker computes the examples of a step from the step's number, so each example is used once per epoch whichever worker
runs the step, and a step that is repeated after a lost worker sees the same examples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from rampline.compiled import as_written
from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import Preempted
from rampline.explain.probes import CACHED, REAL
from rampline.pipeline.batches import make_step_batch
from rampline.pipeline.examples import open_examples
from rampline.pipeline.order import EpochOrder, evaluation_steps
from rampline.training.engine import CALLS_PER_WORKER, StepsDone
from rampline.training.lifeline import Lifeline, StopRequested
from rampline.training.pacing import TRAIN, CallPacer
from rampline.training.parameter_server_steps import ParameterServerSteps
from rampline.training.state import TrainingState
from rampline.training.step import SUMS

# Between two looks whether a call of a lost worker is done.
REPEAT_SECONDS = 0.05


class ParameterServerEngine:
    """Runs on the chief. Variables live on the parameter servers; updates are asynchronous.

    Args:
        config: the run.
        dataset: what it trains on; its directory must be readable by every worker under the same path.
        strategy: `ParameterServerStrategy`.
        state: made in the strategy's scope.
        lifeline: is told of every result, and asked whether to stop.
        measure_staleness: count the updates that each step missed; costs a reading of the counter per step.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        dataset: PreparedDataset,
        strategy: tf.distribute.ParameterServerStrategy,
        state: TrainingState,
        lifeline: Lifeline | None = None,
        measure_staleness: bool = False,
    ) -> None:
        self.state = state
        self._config, self._dataset, self._strategy = config, dataset, strategy
        self._lifeline, self._measure_staleness = lifeline or Lifeline(), measure_staleness
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._order = EpochOrder(
            examples=dataset.splits["train"], global_batch_size=config.global_batch_size, seed=config.seed
        )
        self._pacer = CallPacer(config.steps_per_call, compiling=CALLS_PER_WORKER * config.cluster.workers)
        self._images: dict[str, Iterator] = {}
        self._steps = ParameterServerSteps(
            config, dataset, strategy, state, self._order, measure_staleness=measure_staleness
        )
        self._train_steps = self._steps.make_train()
        self._evaluation_steps: dict[str, tf.types.experimental.GenericFunction] = {}

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """See `Engine.run_steps`; calls are scheduled some ahead of the workers, and told of in order."""
        return self._schedule(self._train_steps, self._worker_images("train"), first_step, steps, TRAIN)

    def _schedule(
        self,
        train_steps: tf.types.experimental.GenericFunction,
        source: Iterator,
        first_step: int,
        steps: int,
        kind: str,
    ) -> Iterator[StepsDone]:
        workers = self._config.cluster.workers
        ahead = CALLS_PER_WORKER * workers
        next_step, end = first_step, first_step + steps
        calls: deque = deque()
        while next_step < end or calls:
            stop = self._lifeline.should_stop()
            while not stop and next_step < end and len(calls) < ahead:
                # Shorter towards the end, so that no worker waits long for the last call of another.
                count = self._pacer.longest(kind, max(1, (end - next_step) // (2 * workers)))
                arguments = (source, tf.constant(next_step, tf.int64), tf.constant(count, tf.int64))
                calls.append((time.monotonic(), self._coordinator.schedule(train_steps, args=arguments)))
                next_step += count
            if not calls:
                yield StepsDone(sums=np.zeros((0, SUMS)), input_wait_seconds=0.0, stop=True)
                return
            self._lifeline.advance(kind)
            scheduled_at, call = calls.popleft()
            sums, wait, staleness, seconds = (np.asarray(part) for part in self._fetch(call))
            # Inside a graph there is but the clock of the wall, which may be set: no call takes longer than its answer.
            seconds = min(max(float(seconds), 0.0), time.monotonic() - scheduled_at)
            self._pacer.note(len(sums), seconds)
            measured = staleness if self._measure_staleness else None
            is_last = stop and not calls
            waited = min(max(float(wait), 0.0), seconds) / workers
            yield StepsDone(sums=sums, input_wait_seconds=waited, stop=is_last, staleness=measured)
            if is_last:
                return
        self._coordinator.join()

    def _fetch(self, call: tf.distribute.coordinator.RemoteValue) -> Any:
        """The results of a call, also where the worker that has them is lost before they are here.

        The coordinator then gives the call to another worker. But it copies results in a thread of its own, and who
        waits for them meanwhile tries the copy that has failed once more (`RemoteValueImpl.get`), and gets the error.
        The design foresaw it and left it to the user: https://github.com/tensorflow/community/pull/214.
        """
        while True:
            try:
                return call.fetch()
            except tf.errors.OpError:
                # Raises what no other worker would do better, such as a lost parameter server.
                if self._coordinator.done():
                    return call.fetch()
                time.sleep(REPEAT_SECONDS)

    def evaluate(self, split: str) -> np.ndarray:
        """See `Engine.evaluate`; the steps are spread over the workers."""
        batch_size = self._config.per_replica_batch_size
        steps = evaluation_steps(replicas=1, batch_size=batch_size, examples=self._dataset.splits[split])
        images, step = self._worker_images(split), self._evaluation_step(split)
        calls = [self._coordinator.schedule(step, args=(images, tf.constant(i, tf.int64))) for i in range(steps)]
        total = np.zeros(SUMS)
        for call in calls:
            if self._lifeline.should_stop():
                raise StopRequested
            self._lifeline.advance("evaluate")
            total += self._fetch(call)
        return total

    def average_moving_statistics(self) -> None:
        """Nothing to do: the parameter servers hold one copy, which all workers update."""

    def read_statistics(self) -> None:
        """None: there is one copy."""

    def write_statistics(self, statistics: np.ndarray) -> None:
        """Refused: there is one copy."""
        raise TypeError("parameter servers hold one copy of the moving statistics")

    def check_agreement(self, step: int) -> None:
        """Nothing to do: the chief alone reads the checkpoint."""

    def average(self, value: float) -> float:
        """See `Engine.average`: the chief alone asks."""
        return value

    def make_probe(self, kind: str) -> Callable[[int], float]:
        """See `Engine.make_probe`."""
        train_steps = self._train_steps if kind == REAL else self._steps.make_train(kind)
        source = self._worker_batch() if kind == CACHED else self._worker_images("train")

        def measure(steps: int) -> float:
            started = time.perf_counter()
            for done in self._schedule(train_steps, source, 0, steps, kind):
                if done.stop:
                    raise Preempted("stopped on request during the probes")
            return (time.perf_counter() - started) / steps

        return measure

    def finish(self) -> None:
        """Wait for everything that was scheduled."""
        self._coordinator.join()

    def _worker_images(self, split: str) -> Iterator:
        """A per-worker source of the split's images, read by the worker itself and kept in its memory."""
        if split not in self._images:
            dataset = self._dataset

            @as_written
            def make() -> tf.data.Dataset:
                once = tf.data.Dataset.range(1).map(lambda _: open_examples(dataset, split).images)
                return once.cache().repeat()

            self._images[split] = iter(self._coordinator.create_per_worker_dataset(make))
        return self._images[split]

    def _worker_batch(self) -> Iterator:
        """A per-worker source of the first step's batch, made once and kept in its memory."""
        dataset, data = self._dataset, self._config.data

        @as_written
        def make() -> tf.data.Dataset:
            examples, first = open_examples(dataset, "train"), tf.data.Dataset.range(1)
            return (
                first.map(lambda step: make_step_batch(examples, order=self._order, data=data, step=step))
                .cache()
                .repeat()
            )

        return iter(self._coordinator.create_per_worker_dataset(make))

    def _evaluation_step(self, split: str) -> tf.types.experimental.GenericFunction:
        if split not in self._evaluation_steps:
            self._evaluation_steps[split] = self._steps.make_evaluate(split)
        return self._evaluation_steps[split]
