"""The compiled functions that parameter-server workers carry out: training steps by number, and evaluation."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import tensorflow as tf

from rampline.compiled import compiled, repeat
from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.explain.probes import CACHED, PIPELINE, REAL
from rampline.pipeline.batches import make_step_batch, make_steps_dataset
from rampline.pipeline.examples import Examples, open_examples
from rampline.pipeline.order import EpochOrder, evaluation_rows
from rampline.training.remote_step import make_remote_evaluation_step, make_remote_train_step
from rampline.training.state import TrainingState
from rampline.training.step import SUMS, Batch


class ParameterServerSteps:
    """Makes the functions; the arguments are those of `ParameterServerEngine`."""

    def __init__(
        self,
        config: RunConfig,
        dataset: PreparedDataset,
        strategy: tf.distribute.ParameterServerStrategy,
        state: TrainingState,
        order: EpochOrder,
        *,
        measure_staleness: bool,
    ) -> None:
        self._config, self._dataset, self._strategy = config, dataset, strategy
        self._state, self._order, self._measure_staleness = state, order, measure_staleness
        self._train_step = make_remote_train_step(state)

    def make_train(self, kind: str = REAL) -> tf.types.experimental.GenericFunction:
        """`(source, first_step, steps)` to `(sums, wait, staleness, seconds)`.

        The first and third have a row per step; `wait` is the part of the `seconds` in which the batch was waited for.

        Args:
            kind: `real`; or a probe, `cached` (the source gives the batch) or `pipeline` (nothing is trained).
        """
        run = self._fetch if kind == PIPELINE else self._train

        def repeated(source: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            batch = next(source)
            return self._in_loop(steps, run, lambda _: batch)

        def in_memory(source: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            examples, data = self.examples("train", next(source)), self._config.data

            def make(i: tf.Tensor) -> Batch:
                return make_step_batch(examples, order=self._order, data=data, step=first_step + i)

            return self._in_loop(steps, run, make)

        def streamed(source: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return self._over_dataset(next(source), first_step, steps, run)

        if kind == CACHED:
            return compiled(repeated)
        # Making a dataset iterator costs tens of milliseconds on a remote worker, far more than gathering a batch from
        # memory; where images are read and decoded, its parallelism is worth that.
        return compiled(in_memory if self._dataset.storage == "tensor" else streamed)

    def make_evaluate(self, split: str) -> tf.types.experimental.GenericFunction:
        """`(images, step)` to (4,) sums over the examples of one evaluation step."""
        evaluation_step = make_remote_evaluation_step(self._state.model)
        size = {"examples": self._dataset.splits[split], "batch_size": self._config.per_replica_batch_size}

        def evaluate(images: Iterator, step: tf.Tensor) -> tf.Tensor:
            rows, weights = evaluation_rows(step, tf.constant(0), replicas=1, **size)
            pixels, labels = self.examples(split, next(images)).take(rows)
            batch = {"images": pixels, "labels": labels, "weights": weights}
            return self._strategy.run(evaluation_step, (batch,))

        return compiled(evaluate)

    def examples(self, split: str, images: tf.Tensor) -> Examples:
        """The split, with the images that a worker has read."""
        return open_examples(self._dataset, split, images)

    def _train(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        counter = self._state.step
        if not self._measure_staleness:
            sums = self._strategy.run(self._train_step, (batch,))
            with tf.device(counter.device):
                counter.assign_add(1)
            return sums, tf.constant(0, tf.int64)
        # What depends on a function's call waits for all that it does, the update included.
        train = compiled(lambda: self._strategy.run(self._train_step, (batch,)))
        before = counter.read_value()
        with tf.control_dependencies([before]):
            sums = train()
        with tf.control_dependencies([sums]):
            counter.assign_add(1)
            return sums, counter.read_value() - before - 1

    def _fetch(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies(tf.nest.flatten(batch)):
            return tf.zeros((SUMS,), keras.config.floatx()), tf.constant(0, tf.int64)

    def _arrays(self, steps: tf.Tensor) -> tuple[tf.TensorArray, tf.TensorArray]:
        size = tf.cast(steps, tf.int32)
        floats = tf.TensorArray(keras.config.floatx(), size=size, element_shape=(SUMS,))
        return floats, tf.TensorArray(tf.int64, size=size, element_shape=())

    def _over_dataset(self, images: tf.Tensor, first: tf.Tensor, steps: tf.Tensor, run) -> tuple[tf.Tensor, ...]:
        examples, data = self.examples("train", images), self._config.data
        batches = make_steps_dataset(examples, order=self._order, data=data, first_step=first, steps=steps)
        started = tf.timestamp()
        first_state = (tf.constant(0, tf.int64), *self._arrays(steps), tf.constant(0.0, tf.float64), started)
        _, *state = batches.reduce(first_state, lambda state, batch: (state[0] + 1, *self._once(run, batch, *state)))
        return self._with_seconds(started, *state)

    def _in_loop(self, steps: tf.Tensor, run, make) -> tuple[tf.Tensor, ...]:
        started = tf.timestamp()
        # No step waits for the end of another: it reads its variables while others are still updated, and batches are
        # made some steps ahead. What is waited for is the rest of that, after the step before.
        first_state = (*self._arrays(steps), tf.constant(0.0, tf.float64), started)
        return self._with_seconds(started, *repeat(steps, lambda i, *s: self._once(run, make(i), i, *s), *first_state))

    def _once(
        self,
        run,
        batch: Batch,
        i: tf.Tensor,
        sums: tf.TensorArray,
        staleness: tf.TensorArray,
        wait: tf.Tensor,
        before: tf.Tensor,
    ) -> tuple[tf.TensorArray, tf.TensorArray, tf.Tensor, tf.Tensor]:
        """Step `i`; `before` is when the one before it had ended."""
        with tf.control_dependencies([before, *tf.nest.flatten(batch)]):
            wait += tf.timestamp() - before
        done, missed = run(batch)
        row = tf.cast(i, tf.int32)
        with tf.control_dependencies([done, missed]):
            return sums.write(row, done), staleness.write(row, missed), wait, tf.timestamp()

    def _with_seconds(
        self, started: tf.Tensor, sums: tf.TensorArray, staleness: tf.TensorArray, wait: tf.Tensor, _: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """The figures of `make_train`: the seconds are those until all others were there."""
        figures = sums.stack(), wait, staleness.stack()
        with tf.control_dependencies(figures):
            return *figures, tf.timestamp() - started
