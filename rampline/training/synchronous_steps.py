"""The compiled functions of the synchronous engine: K steps in one call, and what is summed over all workers."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from rampline.compiled import compiled, repeat
from rampline.config import RunConfig
from rampline.pipeline.batches import ReplicaRange
from rampline.training.state import TrainingState
from rampline.training.step import SUMS, Batch, make_evaluation_step, make_train_step


class SynchronousSteps:
    """Compiled at their first call, for any number of steps.

    Args:
        config: the run.
        strategy: whose replicas take part in every step.
        state: made in its scope.
        replicas: those of this process.

    Batches come from `iterate`. A `note` is (3,) of `keras.config.floatx()`: what a worker tells the others with a
    call; its sum over the workers comes back, the same on each of them.

    Attributes:
        train: `(batches, steps, note)` to `(sums, notes, wait, indices)`: trains on the next `steps` batches.
        evaluate: `(batches, steps, note)` to `(sums, notes)`.
        fetch: `(batches, steps)`: takes that many batches and does nothing with them.
        total: `sum_over_workers`, compiled.
    """

    def __init__(
        self, config: RunConfig, strategy: tf.distribute.Strategy, state: TrainingState, replicas: ReplicaRange
    ) -> None:
        self._config, self._strategy, self._state, self._replicas = config, strategy, state, replicas
        self._on_cpu = "GPU" not in strategy.extended.worker_devices[0]
        self.train = self._make_train()
        self.evaluate = self._make_evaluate()
        self.fetch = self._make_fetch()
        self.total = compiled(self.sum_over_workers)

    def iterate(self, dataset: tf.data.Dataset) -> Iterator:
        """An iterator over the local replicas' batches, one after the other; GPUs get theirs ahead of the step.

        On CPU devices TensorFlow's distributed iterator would take a quarter of a small network's step, for copies that
        are not needed.
        """
        if self._on_cpu:
            return iter(dataset)
        return iter(self._strategy.distribute_datasets_from_function(lambda _: dataset))

    def _next(self, batches: Iterator) -> Batch:
        """The next batch of each local replica."""
        if not self._on_cpu:
            return next(batches)
        shares = [next(batches) for _ in range(self._replicas.count)]
        if len(shares) == 1:
            return shares[0]
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: shares[context.replica_id_in_sync_group]
        )

    def sum_over_workers(self, local: tf.Tensor) -> tf.Tensor:
        """One collective for many steps: the first local replica of each worker brings its worker's sums."""
        if self._config.cluster.workers == 1:
            return local
        count = self._replicas.count

        def reduce() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            is_first = tf.cast(context.replica_id_in_sync_group % count == 0, local.dtype)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, local * is_first)

        return self._strategy.experimental_local_results(self._strategy.run(reduce))[0]

    def _make_train(self) -> tf.types.experimental.GenericFunction:
        strategy, step = self._strategy, self._state.step
        total, logged = strategy.num_replicas_in_sync, self._config.log_examples
        train_step = make_train_step(self._state, num_replicas_in_sync=total, xla=self._config.xla)

        def train(batches: Iterator, steps: tf.Tensor, note: tf.Tensor) -> tuple[tf.Tensor, ...]:
            def train_once(
                i: tf.Tensor, sums: tf.TensorArray, indices: tf.TensorArray, wait: tf.Tensor
            ) -> tuple[tf.TensorArray, tf.TensorArray, tf.Tensor]:
                before = tf.timestamp()
                batch = self._next(batches)
                with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                    wait += tf.timestamp() - before
                sums = sums.write(i, self._local_sum(strategy.run(train_step, (batch,))))
                step.assign_add(1)
                if logged:
                    indices = indices.write(i, self._local_indices(batch))
                return sums, indices, wait

            sums = tf.TensorArray(note.dtype, size=steps, element_shape=(SUMS,))
            indices = tf.TensorArray(tf.int64, size=steps if logged else 0)
            sums, indices, wait = repeat(steps, train_once, sums, indices, tf.constant(0.0, tf.float64))
            reduced, notes = self._sum_with_notes(sums.stack(), note)
            return reduced, notes, wait, indices.stack() if logged else tf.zeros((0,), tf.int64)

        return compiled(train, reduce_retracing=True)

    def _make_evaluate(self) -> tf.types.experimental.GenericFunction:
        strategy, evaluation_step = self._strategy, make_evaluation_step(self._state.model)

        def evaluate(batches: Iterator, steps: tf.Tensor, note: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def evaluate_once(_: tf.Tensor, sums: tf.Tensor) -> tuple[tf.Tensor]:
                return (sums + self._local_sum(strategy.run(evaluation_step, (self._next(batches),))),)

            (sums,) = repeat(steps, evaluate_once, tf.zeros((SUMS,), note.dtype))
            reduced, notes = self._sum_with_notes(sums[None], note)
            return reduced[0], notes

        return compiled(evaluate, reduce_retracing=True)

    def _make_fetch(self) -> tf.types.experimental.GenericFunction:
        def fetch(batches: Iterator, steps: tf.Tensor) -> tf.Tensor:
            def fetch_once(_: tf.Tensor, fetched: tf.Tensor) -> tuple[tf.Tensor]:
                batch = self._next(batches)
                with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                    return (fetched + 1,)

            return repeat(steps, fetch_once, tf.constant(0))[0]

        return compiled(fetch, reduce_retracing=True)

    def _local_indices(self, batch: Batch) -> tf.Tensor:
        """(local replicas x rows,) examples of this process, -1 where there is none."""
        rows = self._config.per_replica_batch_size
        shares = self._strategy.experimental_local_results(batch["indices"])
        return tf.concat([tf.pad(s, [[0, rows - tf.size(s)]], constant_values=-1) for s in shares], axis=0)

    def _sum_with_notes(self, sums: tf.Tensor, note: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(n, 4) and (3,), summed over all workers in one collective."""
        row = tf.pad(note[None], [[0, 0], [0, SUMS - note.shape[0]]])
        reduced = self.sum_over_workers(tf.concat([sums, row], axis=0))
        return reduced[:-1], reduced[-1, : note.shape[0]]

    def _local_sum(self, per_replica: tf.Tensor) -> tf.Tensor:
        return tf.add_n(self._strategy.experimental_local_results(per_replica))
