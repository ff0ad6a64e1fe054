"""Our training loop for `single`, `mirrored` and `multi_worker`: batches, calls, and what all workers agree on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import Preempted, RunFailed
from rampline.explain.probes import CACHED, PIPELINE
from rampline.pipeline.batches import ReplicaRange, make_evaluation_dataset, make_train_dataset
from rampline.pipeline.examples import Examples, open_examples
from rampline.pipeline.order import EpochOrder, evaluation_steps
from rampline.training.batch_norm import make_average, make_gather, write_statistics
from rampline.training.engine import StepsDone
from rampline.training.examples_log import ExamplesLog
from rampline.training.iterators import keep_iterator
from rampline.training.lifeline import Lifeline, StopRequested
from rampline.training.pacing import TRAIN, CallPacer
from rampline.training.state import TrainingState
from rampline.training.step import SUMS
from rampline.training.synchronous_steps import SynchronousSteps

EVALUATION_STEPS_PER_CALL = 64


class SynchronousEngine:
    """Every replica takes part in every step; gradients are summed over all of them.

    Args:
        config: the run.
        dataset: what it trains on.
        strategy: `OneDeviceStrategy`, `MirroredStrategy` or `MultiWorkerMirroredStrategy`.
        state: made in the strategy's scope.
        worker: index of this process among `config.cluster.workers`.
        lifeline: is told of every call, and asked whether to stop.
        examples_log: gets the examples of every step; `None` to keep no record.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        dataset: PreparedDataset,
        strategy: tf.distribute.Strategy,
        state: TrainingState,
        worker: int = 0,
        lifeline: Lifeline | None = None,
        examples_log: ExamplesLog | None = None,
    ) -> None:
        self.state = state
        self._config, self._dataset, self._strategy = config, dataset, strategy
        self._lifeline, self._examples_log = lifeline or Lifeline(), examples_log
        total = strategy.num_replicas_in_sync
        local = total // config.cluster.workers
        self._replicas = ReplicaRange(first=worker * local, count=local, total=total)
        self._order = EpochOrder(
            examples=dataset.splits["train"], global_batch_size=config.global_batch_size, seed=config.seed
        )
        self._examples: dict[str, Examples] = {}
        self._batches: Iterator | None = None
        self._next_step = -1
        self._steps = SynchronousSteps(config, strategy, state, self._replicas)
        self._pacer, self._last_call = CallPacer(config.steps_per_call), (0, 0.0)
        self._average = make_average(state.model, strategy) if total > 1 else None
        self._gather = make_gather(state.model, strategy) if total > 1 else None

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """See `Engine.run_steps`; one element per call of the compiled function."""
        if self._batches is None or first_step != self._next_step:
            self._batches = self._iterate(first_step)
        for start, count in self._calls(steps, TRAIN):
            done, indices = self._train(self._batches, count)
            if self._examples_log:
                self._examples_log.append(first_step + start, indices.numpy())
            self._next_step = first_step + start + count
            yield done
            if done.stop:
                return

    def _train(self, batches: Iterator, count: int) -> tuple[StepsDone, tf.Tensor]:
        """One call of `count` steps, and what all workers tell with it."""
        started = time.perf_counter()
        sums, notes, wait, indices = self._steps.train(batches, tf.constant(count), self._note())
        wishes, past_steps, past_seconds = notes.numpy() / self._config.cluster.workers
        made = sums.numpy()
        self._pacer.note(int(past_steps), float(past_seconds))
        seconds = time.perf_counter() - started
        self._last_call = (count, seconds)
        # Inside a graph there is but the clock of the wall, which may be set: no wait is longer than its call.
        waited = min(max(float(wait), 0.0), seconds)
        done = StepsDone(sums=made, input_wait_seconds=waited, stop=bool(wishes > 0))
        return done, indices

    def evaluate(self, split: str) -> np.ndarray:
        """See `Engine.evaluate`."""
        examples, batch_size = self._dataset.splits[split], self._config.per_replica_batch_size
        replicas = self._replicas

        size = {"total_examples": examples, "batch_size": batch_size, "replicas": replicas}
        batches = self._steps.iterate(make_evaluation_dataset(self._open(split), **size))
        steps = evaluation_steps(replicas=replicas.total, batch_size=batch_size, examples=examples)
        total = np.zeros(SUMS)
        for start in range(0, steps, EVALUATION_STEPS_PER_CALL):
            count = min(EVALUATION_STEPS_PER_CALL, steps - start)
            self._lifeline.advance("evaluate")
            sums, notes = self._steps.evaluate(batches, tf.constant(count), self._note())
            if notes[0] > 0:
                raise StopRequested
            total += sums.numpy()
        return total

    def average_moving_statistics(self) -> None:
        """See `Engine.average_moving_statistics`."""
        if self._average:
            self._average()

    def read_statistics(self) -> np.ndarray | None:
        """See `Engine.read_statistics`."""
        return self._gather() if self._gather else None

    def write_statistics(self, statistics: np.ndarray) -> None:
        """See `Engine.write_statistics`."""
        write_statistics(self.state.model, self._strategy, statistics)

    def check_agreement(self, step: int) -> None:
        """See `Engine.check_agreement`."""
        workers = self._config.cluster.workers
        total = self._steps.total(tf.constant(step, tf.int64))
        if int(total) != workers * step:
            raise RunFailed(f"the workers found different checkpoints (this one: step {step}): do they see one folder?")

    def finish(self) -> None:
        """See `Engine.finish`."""
        self._steps.total(tf.zeros(()))

    def average(self, value: float) -> float:
        """See `Engine.average`."""
        total = self._steps.total(tf.constant(value, tf.float64))
        return float(total) / self._config.cluster.workers

    def make_probe(self, kind: str) -> Callable[[int], float]:
        """See `Engine.make_probe`."""
        batches = self._iterate(0, repeat_first=kind == CACHED)

        def measure(steps: int) -> float:
            started = time.perf_counter()
            for _, count in self._calls(steps, kind):
                if kind == PIPELINE:
                    self._steps.fetch(batches, tf.constant(count)).numpy()
                elif self._train(batches, count)[0].stop:
                    raise Preempted("stopped on request during the probes")
            return (time.perf_counter() - started) / steps

        return measure

    def _open(self, split: str) -> Examples:
        """The split, read into this process once."""
        if split not in self._examples:
            self._examples[split] = open_examples(self._dataset, split)
        return self._examples[split]

    def _calls(self, steps: int, kind: str) -> Iterator[tuple[int, int]]:
        """First step and number of steps of each call of a compiled function; the first of each kind may compile."""
        for start, count in self._pacer.split(kind, steps):
            self._lifeline.advance(kind)
            yield start, count

    def _note(self) -> tf.Tensor:
        """(3,): 1 when this role wants to stop, and the steps and seconds of its last call: summed over the workers."""
        return tf.constant([float(self._lifeline.should_stop()), *self._last_call], keras.config.floatx())

    def _iterate(self, first_step: int, *, repeat_first: bool = False) -> Iterator:
        """The batches of the training from that step on, or that step's again and again."""
        shape = {"order": self._order, "data": self._config.data, "replicas": self._replicas}
        batches = make_train_dataset(self._open("train"), **shape, first_step=first_step)
        batches = batches.take(self._replicas.count).cache().repeat() if repeat_first else batches
        return keep_iterator(self._steps.iterate(batches))
