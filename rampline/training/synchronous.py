"""Our training loop for `single`, `mirrored` and `multi_worker`: batches, calls, and what all workers agree on."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.compiled import compiled, repeat
from rampline.data.dataset import PreparedDataset
from rampline.pipeline.batches import make_evaluation_dataset, make_train_dataset, on_devices
from rampline.pipeline.examples import open_examples
from rampline.pipeline.order import EpochOrder, evaluation_steps, order_of
from rampline.training.batch_norm import make_average, make_gather, moving_statistics, write_statistics
from rampline.training.engine import (
    TRAIN,
    CallPacer,
    ExamplesLog,
    StepCallback,
    StepsDone,
    StopRequested,
)
from rampline.training.logical_replicas import LogicalReplicas, add_sums, range_of
from rampline.training.objective import Batch
from rampline.training.state import TrainingState
from rampline.training.step import make_evaluation_step, make_train_step
from rampline.training.timings import CACHED, PIPELINE, UPDATE


def _clock() -> Callable[[], tf.Tensor]:
    """Seconds, a float64 scalar. TensorFlow refuses its own clock where all operations must be deterministic."""
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return lambda: tf.ensure_shape(tf.numpy_function(time.perf_counter, (), tf.float64), ())
    return tf.timestamp


def keep_iterator(iterator: Iterator) -> Iterator:
    """`iterator`, which nothing deletes from now on, not even the interpreter when it ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(iterator))
    return iterator


EVALUATION_STEPS_PER_CALL = 64


class SynchronousEngine:
    """Every replica takes part in every step; gradients are summed over all of them.

    Args:
        state: made in the scope of the strategy: one device, mirrored, or multi-worker mirrored.
        worker: index of this process among those that train together.
        callback: is told of every call, and asked whether to stop.
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
        callback: StepCallback | None = None,
        examples_log: ExamplesLog | None = None,
    ) -> None:
        self.state = state
        self._config, self._dataset, self._strategy = config, dataset, strategy
        self._callback, self._examples_log = callback or StepCallback(), examples_log
        is_exact, physical = config.cluster.sum == "exact", strategy.num_replicas_in_sync
        total = config.num_replicas_in_sync if is_exact else physical
        # Processes that train together; fewer than `cluster.workers` where an elastic run has shrunk.
        self._workers = physical // config.cluster.replicas
        self._replicas = range_of(worker, self._workers, total)
        self._order = order_of(config, dataset)
        self._open = functools.cache(functools.partial(open_examples, dataset))  # each split is read once
        self._batches: Iterator | None = None
        self._next_step = -1
        self._logical = LogicalReplicas(state, strategy, self._replicas) if is_exact else None
        self._is_plain = is_exact or "GPU" not in strategy.extended.worker_devices[0]
        # Of what a step returns: its sums, of each logical replica where there are some.
        self._width = state.objective.width * (self._replicas.total if is_exact else 1)
        self._now = _clock()
        # Compiled at their first call, for any number of steps. Their `note` is what `_note` makes; its sum over the
        # workers comes back, the same on each of them.
        self._train_steps, self._evaluation_steps = self._make_train_steps(), self._make_evaluation_steps()
        self._fetch_steps, self._update_steps = self._make_fetch_steps(), self._make_update_steps()
        self._total = compiled(self._sum_over_workers)
        self._pacer, self._last_call = CallPacer(config.steps_per_call), (0, 0.0)
        self._average, self._gather = None, None
        if self._logical:
            self._average, self._gather = self._logical.average_statistics, self._logical.read_statistics
        elif total > 1 and moving_statistics(state.model):
            self._average, self._gather = make_average(state.model, strategy), make_gather(state.model, strategy)

    def run_steps(
        self, first_step: int, steps: int, is_enough: Callable[[], bool] = lambda: False
    ) -> Iterator[StepsDone]:
        """As `Engine` says, with one element per call of the compiled function."""
        if self._batches is None or first_step != self._next_step:
            self._batches = self._iterate(first_step, self._order)
        for start, count in self._calls(steps, TRAIN):
            done, indices = self._train(self._batches, count, is_enough=is_enough())
            if self._examples_log:
                self._examples_log.append(first_step + start, indices.numpy())
            self._next_step = first_step + start + count
            yield done
            if done.stop:
                return

    def _train(self, batches: Iterator, count: int, *, is_enough: bool = False) -> tuple[StepsDone, tf.Tensor]:
        """One call of `count` steps, and what all workers tell with it."""
        started = time.perf_counter()
        sums, notes, wait, indices = self._train_steps(batches, tf.constant(count), self._note(is_enough))
        wishes, past_steps, past_seconds = notes.numpy() / self._workers
        made = sums.numpy()
        self._pacer.note(int(past_steps), float(past_seconds))
        seconds = time.perf_counter() - started
        self._last_call = (count, seconds)
        # Inside a graph there is but the clock of the wall, which may be set: no wait is longer than its call.
        waited = min(max(float(wait), 0.0), seconds)
        done = StepsDone(sums=made, input_wait_seconds=waited, stop=bool(wishes > 0))
        return done, indices

    def evaluate(self, split: str) -> np.ndarray:
        examples, replicas = self._dataset.splits[split], self._replicas
        batch_size = self._config.micro_batch_size or replicas.rows(self._config.global_batch_size)
        size = {"total_examples": examples, "batch_size": batch_size, "replicas": replicas}
        # The split may be read as a whole, which says nothing of how long a step may take.
        self._callback.advance("open")
        batches = self._iterate_shares(make_evaluation_dataset(self._open(split), **size))
        steps = evaluation_steps(replicas=replicas.total, batch_size=batch_size, examples=examples)
        total = np.zeros(self.state.objective.width)
        for start in range(0, steps, EVALUATION_STEPS_PER_CALL):
            count = min(EVALUATION_STEPS_PER_CALL, steps - start)
            self._callback.advance("evaluate")
            sums, notes = self._evaluation_steps(batches, tf.constant(count), self._note())
            if notes[0] > 0:
                raise StopRequested
            total += sums.numpy()
        return total

    def average_moving_statistics(self) -> None:
        if self._average:
            self._average()

    def read_statistics(self) -> np.ndarray | None:
        return self._gather() if self._gather else None

    def write_statistics(self, statistics: np.ndarray | None) -> None:
        if self._logical:
            self._logical.write_statistics(statistics)
        elif statistics is not None:
            write_statistics(self.state.model, self._strategy, statistics)

    def finish(self) -> None:
        self._total(tf.zeros(()))

    def average(self, value: float) -> float:
        total = self._total(tf.constant(value, tf.float64))
        return float(total) / self._workers

    def make_probe(self, kind: str, batch_size: int | None = None) -> Callable[[int], float]:
        batches = self._iterate(0, self._order.in_whole_batches(batch_size), repeat_first=kind == CACHED)

        def measure(steps: int) -> float:
            started = time.perf_counter()
            for _, count in self._calls(steps, kind):
                if kind == UPDATE:
                    self._update_steps(tf.constant(count), tf.constant(0.0)).numpy()
                elif kind == PIPELINE:
                    self._fetch_steps(batches, tf.constant(count)).numpy()
                elif self._train(batches, count)[0].stop:
                    raise StopRequested
            return (time.perf_counter() - started) / steps

        return measure

    def _calls(self, steps: int, kind: str) -> Iterator[tuple[int, int]]:
        """First step and number of steps of each call of a compiled function; the first of each kind may compile."""
        for start, count in self._pacer.split(kind, steps):
            self._callback.advance(kind)
            yield start, count

    def _note(self, is_enough: bool = False) -> tf.Tensor:
        """(3,): 1 when this role wants to stop, and the steps and seconds of its last call: summed over the workers."""
        wish = float(is_enough or self._callback.should_stop())
        return tf.constant([wish, *self._last_call], keras.config.floatx())

    def _iterate(self, first_step: int, order: EpochOrder, *, repeat_first: bool = False) -> Iterator:
        """The batches of the training from that step on, or that step's again and again."""
        shape = {"order": order, "data": self._config.data, "replicas": self._replicas}
        batches = make_train_dataset(self._open("train"), **shape, first_step=first_step)
        batches = batches.take(self._replicas.count).cache().repeat() if repeat_first else batches
        return keep_iterator(self._iterate_shares(batches))

    def _iterate_shares(self, dataset: tf.data.Dataset) -> Iterator:
        """An iterator over the local replicas' batches, one after the other.

        GPUs get theirs ahead of the step, but for `prefetch: off`.

        On CPU devices TensorFlow's distributed iterator would take a quarter of a small network's step, for copies that
        are not needed.
        """
        if self._is_plain:
            return iter(dataset)
        return iter(on_devices(self._strategy, dataset, self._config.data))

    def _next(self, batches: Iterator) -> Batch | tuple[Batch, ...]:
        """The next batch of each local replica; of logical ones a tuple."""
        if not self._is_plain:
            return next(batches)
        shares = [next(batches) for _ in range(self._replicas.count)]
        if self._logical:
            return tuple(shares)
        if len(shares) == 1:
            return shares[0]
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: shares[context.replica_id_in_sync_group]
        )

    def _sum_over_workers(self, local: tf.Tensor) -> tf.Tensor:
        """One collective for many steps: the first local replica of each worker brings its worker's sums."""
        if self._workers == 1:
            return local
        count = self._strategy.num_replicas_in_sync // self._workers

        def reduce() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            is_first = tf.cast(context.replica_id_in_sync_group % count == 0, local.dtype)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, local * is_first)

        return self._strategy.experimental_local_results(self._strategy.run(reduce))[0]

    def _make_train_steps(self) -> tf.types.experimental.GenericFunction:
        """`(batches, steps, note)` to `(sums, notes, wait, indices)`: trains on the next `steps` batches."""
        strategy, step = self._strategy, self.state.step
        logged = self._config.log_examples
        how = {"micro_batch": self._config.micro_batch_size, "xla": self._config.xla}
        train_step = self._logical.make_train_step(**how) if self._logical else make_train_step(self.state, **how)

        def train(batches: Iterator, steps: tf.Tensor, note: tf.Tensor) -> tuple[tf.Tensor, ...]:
            def train_once(
                i: tf.Tensor, sums: tf.TensorArray, indices: tf.TensorArray, wait: tf.Tensor
            ) -> tuple[tf.TensorArray, tf.TensorArray, tf.Tensor]:
                before = self._now()
                batch = self._next(batches)
                with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                    wait += self._now() - before
                sums = sums.write(i, self._local_sum(strategy.run(train_step, (batch,))))
                step.assign_add(1)
                if logged:
                    indices = indices.write(i, self._local_indices(batch))
                return sums, indices, wait

            sums = tf.TensorArray(note.dtype, size=steps, element_shape=(self._width,))
            indices = tf.TensorArray(tf.int64, size=steps if logged else 0)
            sums, indices, wait = repeat(steps, train_once, sums, indices, tf.constant(0.0, tf.float64))
            reduced, notes = self._sum_with_notes(sums.stack(), note)
            return reduced, notes, wait, indices.stack() if logged else tf.zeros((0,), tf.int64)

        return compiled(train, reduce_retracing=True)

    def _make_evaluation_steps(self) -> tf.types.experimental.GenericFunction:
        """`(batches, steps, note)` to `(sums, notes)`."""
        strategy, logical = self._strategy, self._logical
        evaluation_step = logical.make_evaluation_step() if logical else make_evaluation_step(self.state)

        def evaluate(batches: Iterator, steps: tf.Tensor, note: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def evaluate_once(_: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor]:
                return (sums + self._local_sum(strategy.run(evaluation_step, (self._next(batches),))),)

            (sums,) = repeat(steps, evaluate_once, tf.zeros((self._width,), note.dtype))
            reduced, notes = self._sum_with_notes(sums[None], note)
            return reduced[0], notes

        return compiled(evaluate, reduce_retracing=True)

    def _make_fetch_steps(self) -> tf.types.experimental.GenericFunction:
        """`(batches, steps)`: takes that many batches and does nothing with them."""

        def fetch(batches: Iterator, steps: tf.Tensor) -> tf.Tensor:
            def fetch_once(_: tf.Tensor, fetched: tf.Tensor) -> tuple[tf.Tensor]:
                batch = self._next(batches)
                with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                    return (fetched + 1,)

            return repeat(steps, fetch_once, tf.constant(0))[0]

        return compiled(fetch, reduce_retracing=True)

    def _make_update_steps(self) -> tf.types.experimental.GenericFunction:
        """`(steps, scale)`: updates the weights that many times with themselves times `scale` for gradients."""
        optimizer, variables = self.state.optimizer, self.state.model.trainable_variables

        def update_replica(scale: tf.Tensor) -> None:
            # Gradients that are constants would be summed when the graph is built.
            optimizer.apply([v.value * tf.cast(scale, v.dtype) for v in variables], variables)

        def update(steps: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
            def update_once(_: tf.Tensor, updated: tf.Tensor) -> tuple[tf.Tensor]:
                self._strategy.run(update_replica, (scale,))
                return (updated + 1,)

            return repeat(steps, update_once, tf.constant(0))[0]

        return compiled(update)

    def _local_indices(self, batch: Batch | tuple[Batch, ...]) -> tf.Tensor:
        """(local replicas x rows,) examples of this process, -1 where there is none."""
        rows = self._replicas.rows(self._config.global_batch_size)
        if isinstance(batch, tuple):
            shares = [share["indices"] for share in batch]
        else:
            shares = self._strategy.experimental_local_results(batch["indices"])
        return tf.concat([tf.pad(s, [[0, rows - tf.size(s)]], constant_values=-1) for s in shares], axis=0)

    def _sum_with_notes(self, sums: tf.Tensor, note: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(n, width) and (3,), summed over all workers in one collective."""
        row = tf.pad(note[None], [[0, 0], [0, self._width - note.shape[0]]])
        reduced = self._sum_over_workers(tf.concat([sums, row], axis=0))
        width = self.state.objective.width
        return add_sums(reduced[:-1], width) if self._logical else reduced[:-1], reduced[-1, : note.shape[0]]

    def _local_sum(self, per_replica: tf.Tensor) -> tf.Tensor:
        return tf.add_n(self._strategy.experimental_local_results(per_replica))
