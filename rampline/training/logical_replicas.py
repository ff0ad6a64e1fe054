"""`cluster.sum: exact`: as many logical replicas as the run's full size has, shared out over the workers there are.

A worker computes its logical replicas one after the other. Each has its examples, its BatchNorm statistics and its
random draws, and gradients are added in the order of the replicas: the bits do not tell how many workers there were.
The idea is that of EasyScale (Li et al. 2023, https://arxiv.org/abs/2208.14228).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from rampline.data.compiled import compiled
from rampline.pipeline.batches import ReplicaRange
from rampline.training.batch_norm import assign_row, mean_statistics, moving_statistics, read_row, widest
from rampline.training.objective import Batch
from rampline.training.random_draws import begin_step, of_replica, seeds_of
from rampline.training.state import TrainingState
from rampline.training.step import make_evaluation_step, make_loss_gradients

Shares = tuple[Batch, ...]

# TensorFlow counts the groups of its strategies from 1, and the collectives of each apart.
_GROUP = 1_000_000
_EXCHANGE, _COLLECT = 1, 2


def range_of(worker: int, workers: int, total: int) -> ReplicaRange:
    """The replicas of one of so many workers; the numbers of two workers differ by one at most."""
    first, end = worker * total // workers, (worker + 1) * total // workers
    return ReplicaRange(first=first, count=end - first, total=total)


class LogicalReplicas:
    """The logical replicas of this worker, on its one device.

    Args:
        state: made in the strategy's scope.
        strategy: whose replicas are the workers.
        replicas: the logical ones of this worker, out of those of the full size.
    """

    def __init__(self, state: TrainingState, strategy: tf.distribute.Strategy, replicas: ReplicaRange) -> None:
        self._state, self._strategy, self._replicas = state, strategy, replicas
        self._workers = strategy.num_replicas_in_sync
        self._statistics = moving_statistics(state.model)
        self._seeds = seeds_of(state.model)
        # Of each logical replica, where the layers' own variables are not enough.
        self._rows: tf.Variable | None = None
        if self._statistics and replicas.count > 1:
            row = read_row(self._statistics).numpy()
            self._rows = tf.Variable(np.stack([row] * replicas.count), trainable=False)
        self._gather = compiled(lambda: self._strategy.run(self._gather_replica))
        self._assign = compiled(lambda row: self._strategy.run(assign_row, (self._statistics, row)))

    def make_train_step(self, *, xla: bool, micro_batch: int | None = None) -> Callable[[Shares], tf.Tensor]:
        """A function of the worker's batches that updates the weights once, and returns its `rows_of` sums."""
        model, optimizer = self._state.model, self._state.optimizer
        gradients = make_loss_gradients(self._state, micro_batch=micro_batch, xla=xla)

        def train_step(shares: Shares) -> tf.Tensor:
            values, sums = [], []
            if micro_batch is not None:
                begin_step(self._seeds, self._state.step)
            seeds = [tf.identity(seed.value) for seed in self._seeds]
            for number, batch in enumerate(shares):
                self._enter(number, seeds)
                # One after the other, so that memory holds the work of one.
                with tf.control_dependencies([tensor for one in values for tensor in one if tensor is not None]):
                    ours, own_sums = gradients(batch)
                self._leave(number)
                values.append(ours)
                sums.append(own_sums)
            for seed, before in zip(self._seeds, seeds, strict=True):
                # Micro-batches: the replicas differ in the count of their draws.
                seed.assign(tf.stack([before[0], seed.value[1]]) if micro_batch is None else before)
            optimizer.apply(self._sum_gradients(values), model.trainable_variables)
            return self._rows_of(sums)

        return train_step

    def make_evaluation_step(self) -> Callable[[Shares], tf.Tensor]:
        """A function of the worker's padded batches that returns its `rows_of` sums."""
        evaluate = make_evaluation_step(self._state)
        return lambda shares: self._rows_of([evaluate(batch) for batch in shares])

    def read_statistics(self) -> np.ndarray | None:
        """(logical replicas, total) moving statistics, see `Engine.read_statistics`."""
        return self._strategy.experimental_local_results(self._gather())[0].numpy() if self._statistics else None

    def write_statistics(self, values: np.ndarray | None) -> None:
        """Give each logical replica its row; those of another number their mean; all the model's own without any."""
        if not self._statistics:
            return
        replicas = self._replicas
        rows: np.ndarray = read_row(self._statistics).numpy()[None] if values is None else values
        if len(rows) != replicas.total:
            rows = np.broadcast_to(mean_statistics(rows), (replicas.total, rows.shape[1]))
        own = rows[replicas.first : replicas.first + replicas.count]
        if self._rows is not None:
            self._rows.assign(own)
        self._assign(tf.constant(own[-1]))

    def average_statistics(self) -> None:
        """Set those of every logical replica, and the model's, to the mean; all workers call it together."""
        values = self.read_statistics()
        if values is not None:
            self.write_statistics(mean_statistics(values)[None])

    def _enter(self, number: int, seeds: Sequence[tf.Tensor]) -> None:
        """Let the layers be those of one logical replica."""
        if self._rows is not None:
            assign_row(self._statistics, self._rows[number])
        for seed, before in zip(self._seeds, seeds, strict=True):
            seed.assign(of_replica(before, self._replicas.first + number))

    def _leave(self, number: int) -> None:
        if self._rows is not None:
            self._rows[number].assign(read_row(self._statistics))

    def _gather_replica(self) -> tf.Tensor:
        row = read_row(self._statistics)
        rows = row[None] if self._rows is None else self._rows.read_value()
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, self._padded(rows))

    def _rows_of(self, sums: Sequence[tf.Tensor]) -> tf.Tensor:
        """(logical replicas x width,): the sums of this worker's, and zeros for the others'."""
        return tf.reshape(self._padded(tf.stack(sums)), [-1])

    def _padded(self, rows: tf.Tensor) -> tf.Tensor:
        """A sum of zeros and one row is exact, whichever worker brings it."""
        replicas = self._replicas
        return tf.pad(rows, [[replicas.first, replicas.total - replicas.first - replicas.count], [0, 0]])

    def _sum_gradients(self, values: Sequence[Sequence[tf.Tensor | None]]) -> list[tf.Tensor | None]:
        """The gradients of all logical replicas, added in their order; `values`: those of each of this worker."""
        there = [index for index, value in enumerate(values[0]) if value is not None]
        tensors = [[tf.convert_to_tensor(own[index]) for index in there] for own in values]
        shapes, dtype = [tensor.shape for tensor in tensors[0]], widest(tensors[0])
        rows = [tf.concat([tf.reshape(tf.cast(one, dtype), [-1]) for one in own], axis=0) for own in tensors]
        parts = tf.split(self._sum_rows(rows), [shape.num_elements() for shape in shapes])
        total: list[tf.Tensor | None] = [None] * len(values[0])
        for index, part, like in zip(there, parts, tensors[0], strict=True):
            total[index] = tf.cast(tf.reshape(part, like.shape), like.dtype)
        return total

    def _sum_rows(self, rows: list[tf.Tensor]) -> tf.Tensor:
        """(n,) sum in order: each worker adds one slice of all rows, and the workers exchange the slices.

        With one logical replica for each worker that is the traffic of a ring: every worker sends, and gets, twice all
        but one of as many slices as there are workers.
        """
        workers, total = self._workers, self._replicas.total
        if workers == 1:
            return add_in_order(rows)
        size = rows[0].shape.num_elements()
        slice_size, most = -(-size // workers), -(-total // workers)
        rows = rows + [tf.zeros_like(rows[0])] * (most - len(rows))
        slices = [tf.reshape(tf.pad(row, [[0, workers * slice_size - size]]), (workers, slice_size)) for row in rows]
        group = {"group_size": workers, "group_key": _GROUP, "ordering_token": []}
        theirs = tf.raw_ops.CollectiveAllToAllV2(input=tf.stack(slices, axis=1), instance_key=_EXCHANGE, **group)
        theirs = tf.ensure_shape(theirs, (workers, most, slice_size))
        counts = [range_of(worker, workers, total).count for worker in range(workers)]
        own = add_in_order([theirs[worker, number] for worker in range(workers) for number in range(counts[worker])])
        whole = tf.raw_ops.CollectiveGatherV2(input=own, instance_key=_COLLECT, **group)
        return tf.ensure_shape(whole, (workers * slice_size,))[:size]


def add_in_order(rows: Sequence[tf.Tensor]) -> tf.Tensor:
    """((first + second) + third) + …: no operation of TensorFlow for many says in which order it adds."""
    total = rows[0]
    for row in rows[1:]:
        total += row
    return total


def add_sums(rows: tf.Tensor, width: int) -> tf.Tensor:
    """(..., logical replicas x width) sums as (..., width), added in the order of the replicas."""
    replicas = rows.shape[-1] // width
    return add_in_order([rows[..., number * width : (number + 1) * width] for number in range(replicas)])
