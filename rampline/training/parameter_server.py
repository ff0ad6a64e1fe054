"""Our training loop for `parameter_server`: the chief schedules steps by number, any worker carries them out.

A worker computes the examples of a step from the step's number, so each example is used once per epoch whichever worker
runs
the step, and a step that is repeated after a lost worker sees the same examples.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.pipeline.batches import make_step_batch, make_steps_dataset
from rampline.pipeline.examples import Examples, open_examples
from rampline.pipeline.order import EpochOrder, evaluation_rows, evaluation_steps
from rampline.training.engine import StepsDone
from rampline.training.lifeline import Lifeline, StopRequested
from rampline.training.state import TrainingState
from rampline.training.step import make_evaluation_step, make_train_step

CALLS_PER_WORKER = 4


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
        self._images: dict[str, Iterator] = {}
        self._train_steps = self._make_train_steps()
        self._evaluation_steps: dict[str, tf.types.experimental.GenericFunction] = {}

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """See `Engine.run_steps`; calls are scheduled some ahead of the workers, and told of in order."""
        images, workers = self._worker_images("train"), self._config.cluster.workers
        # Short enough that no worker waits long for the last call of another.
        steps_per_call = min(self._config.steps_per_call, max(1, steps // (CALLS_PER_WORKER * workers)))
        starts = deque(range(first_step, first_step + steps, steps_per_call))
        calls: deque = deque()
        while starts or calls:
            stop = self._lifeline.should_stop()
            if stop:
                starts.clear()
            while starts and len(calls) < CALLS_PER_WORKER * workers:
                start = starts.popleft()
                count = min(steps_per_call, first_step + steps - start)
                arguments = (images, tf.constant(start, tf.int64), tf.constant(count, tf.int64))
                calls.append(self._coordinator.schedule(self._train_steps, args=arguments))
            if not calls:
                yield StepsDone(sums=np.zeros((0, 3)), input_wait_seconds=0.0, stop=True)
                return
            self._lifeline.advance("train")
            sums, wait, staleness = (np.asarray(part) for part in calls.popleft().fetch())
            measured = staleness if self._measure_staleness else None
            is_last = stop and not calls
            yield StepsDone(sums=sums, input_wait_seconds=float(wait) / workers, stop=is_last, staleness=measured)
            if is_last:
                return
        self._coordinator.join()

    def evaluate(self, split: str) -> np.ndarray:
        """See `Engine.evaluate`; the steps are spread over the workers."""
        batch_size = self._config.per_replica_batch_size
        steps = evaluation_steps(replicas=1, batch_size=batch_size, examples=self._dataset.splits[split])
        images, step = self._worker_images(split), self._evaluation_step(split)
        calls = [self._coordinator.schedule(step, args=(images, tf.constant(i, tf.int64))) for i in range(steps)]
        total = np.zeros(3)
        for call in calls:
            if self._lifeline.should_stop():
                raise StopRequested
            self._lifeline.advance("evaluate")
            total += call.fetch()
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

    def finish(self) -> None:
        """Wait for everything that was scheduled."""
        self._coordinator.join()

    def _worker_images(self, split: str) -> Iterator:
        """A per-worker source of the split's images, read by the worker itself and kept in its memory."""
        if split not in self._images:
            dataset = self._dataset

            def make() -> tf.data.Dataset:
                once = tf.data.Dataset.range(1).map(lambda _: open_examples(dataset, split).images)
                return once.cache().repeat()

            self._images[split] = iter(self._coordinator.create_per_worker_dataset(make))
        return self._images[split]

    def _examples(self, split: str, images: tf.Tensor) -> Examples:
        dataset = self._dataset
        labels = tf.constant(dataset.labels(split), tf.int32)
        return Examples(storage=dataset.storage, image_shape=dataset.image_shape, labels=labels, images=images)

    def _make_train_steps(self) -> tf.types.experimental.GenericFunction:
        train_step = make_train_step(self.state, num_replicas_in_sync=1, xla=self._config.xla)
        counter = self.state.step

        def run(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
            before = counter.read_value() if self._measure_staleness else tf.constant(0, tf.int64)
            with tf.control_dependencies([before]):
                sums = self._strategy.run(train_step, (batch,))
            with tf.control_dependencies([sums]):
                counter.assign_add(1)
                after = counter.read_value() if self._measure_staleness else tf.constant(1, tf.int64)
            return sums, after - before - 1

        def arrays(steps: tf.Tensor) -> tuple[tf.TensorArray, tf.TensorArray]:
            size = tf.cast(steps, tf.int32)
            floats = tf.TensorArray(keras.config.floatx(), size=size, element_shape=(3,))
            return floats, tf.TensorArray(tf.int64, size=size, element_shape=())

        @tf.function
        def train_steps(images: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            examples = self._examples("train", next(images))
            sums, staleness = arrays(steps)
            i, wait, before = tf.constant(0), tf.constant(0.0, tf.float64), tf.timestamp()
            for batch in self._batches(examples, first_step, steps):
                with tf.control_dependencies(tf.nest.flatten(batch)):
                    wait += tf.timestamp() - before
                done, missed = run(batch)
                sums, staleness = sums.write(i, done), staleness.write(i, missed)
                i += 1
                with tf.control_dependencies([done, missed]):
                    before = tf.timestamp()
            return sums.stack(), wait, staleness.stack()

        @tf.function
        def train_steps_in_memory(images: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            examples = self._examples("train", next(images))
            sums, staleness = arrays(steps)
            wait = tf.constant(0.0, tf.float64)
            for i in tf.range(steps):
                before = tf.timestamp()
                batch = make_step_batch(examples, order=self._order, data=self._config.data, step=first_step + i)
                with tf.control_dependencies(tf.nest.flatten(batch)):
                    wait += tf.timestamp() - before
                done, missed = run(batch)
                row = tf.cast(i, tf.int32)
                sums, staleness = sums.write(row, done), staleness.write(row, missed)
            return sums.stack(), wait, staleness.stack()

        # Making a dataset iterator costs tens of milliseconds on a remote worker, far more than gathering a batch from
        # memory; where images are read and decoded, its parallelism is worth that.
        return train_steps_in_memory if self._dataset.storage == "tensor" else train_steps

    def _batches(self, examples: Examples, first_step: tf.Tensor, steps: tf.Tensor) -> tf.data.Dataset:
        data = self._config.data
        return make_steps_dataset(examples, order=self._order, data=data, first_step=first_step, steps=steps)

    def _evaluation_step(self, split: str) -> tf.types.experimental.GenericFunction:
        if split not in self._evaluation_steps:
            self._evaluation_steps[split] = self._make_evaluation_step(split)
        return self._evaluation_steps[split]

    def _make_evaluation_step(self, split: str) -> tf.types.experimental.GenericFunction:
        evaluation_step = make_evaluation_step(self.state.model)
        size = {"examples": self._dataset.splits[split], "batch_size": self._config.per_replica_batch_size}

        @tf.function
        def evaluate(images: Iterator, step: tf.Tensor) -> tf.Tensor:
            rows, weights = evaluation_rows(step, tf.constant(0), replicas=1, **size)
            pixels, labels = self._examples(split, next(images)).take(rows)
            batch = {"images": pixels, "labels": labels, "weights": weights}
            return self._strategy.run(evaluation_step, (batch,))

        return evaluate
