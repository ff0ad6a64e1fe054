"""Our training loop for `single`, `mirrored` and `multi_worker`: K steps in one call of a compiled function."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.pipeline.batches import ReplicaRange, make_evaluation_dataset, make_train_dataset
from rampline.pipeline.examples import open_examples
from rampline.pipeline.order import EpochOrder, evaluation_steps
from rampline.training.batch_norm import make_average, make_gather, write_statistics
from rampline.training.engine import StepsDone
from rampline.training.examples_log import ExamplesLog
from rampline.training.lifeline import Lifeline, StopRequested
from rampline.training.state import TrainingState
from rampline.training.step import make_evaluation_step, make_train_step

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
        self._batches: Iterator | None = None
        self._next_step = -1
        self._train_steps = self._make_train_steps()
        self._evaluation_steps = self._make_evaluation_steps()
        self._average = make_average(state.model, strategy) if total > 1 else None
        self._gather = make_gather(state.model, strategy) if total > 1 else None

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """See `Engine.run_steps`; one element per call of the compiled function."""
        if self._batches is None or first_step != self._next_step:
            self._batches = iter(self._train_batches(first_step))
        for start in range(0, steps, self._config.steps_per_call):
            count = min(self._config.steps_per_call, steps - start)
            self._lifeline.advance("train")
            sums, wishes, wait, indices = self._train_steps(self._batches, tf.constant(count), self._wish())
            if self._examples_log:
                self._examples_log.append(first_step + start, indices.numpy())
            self._next_step = first_step + start + count
            stop = bool(wishes > 0)
            yield StepsDone(sums=sums.numpy(), input_wait_seconds=float(wait), stop=stop)
            if stop:
                return

    def evaluate(self, split: str) -> np.ndarray:
        """See `Engine.evaluate`."""
        examples, batch_size = self._dataset.splits[split], self._config.per_replica_batch_size
        replicas = self._replicas

        def make(_: tf.distribute.InputContext) -> tf.data.Dataset:
            return make_evaluation_dataset(
                open_examples(self._dataset, split), total_examples=examples, batch_size=batch_size, replicas=replicas
            )

        batches = iter(self._strategy.distribute_datasets_from_function(make))
        steps = evaluation_steps(replicas=replicas.total, batch_size=batch_size, examples=examples)
        total = np.zeros(3)
        for start in range(0, steps, EVALUATION_STEPS_PER_CALL):
            count = min(EVALUATION_STEPS_PER_CALL, steps - start)
            self._lifeline.advance("evaluate")
            sums, wishes = self._evaluation_steps(batches, tf.constant(count), self._wish())
            if wishes > 0:
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
        total = tf.function(self._sum_over_workers)(tf.constant(step, tf.int64))
        if int(total) != workers * step:
            raise RunFailed(f"the workers found different checkpoints (this one: step {step}): do they see one folder?")

    def finish(self) -> None:
        """See `Engine.finish`."""
        tf.function(self._sum_over_workers)(tf.zeros(()))

    def _wish(self) -> tf.Tensor:
        """1 when this role wants to stop: summed over the workers with the next call's figures."""
        return tf.constant(float(self._lifeline.should_stop()), keras.config.floatx())

    def _train_batches(self, first_step: int) -> tf.distribute.DistributedDataset:
        def make(_: tf.distribute.InputContext) -> tf.data.Dataset:
            examples = open_examples(self._dataset, "train")
            shape = {"order": self._order, "data": self._config.data, "replicas": self._replicas}
            return make_train_dataset(examples, **shape, first_step=first_step)

        return self._strategy.distribute_datasets_from_function(make)

    def _make_train_steps(self) -> tf.types.experimental.GenericFunction:
        strategy, step = self._strategy, self.state.step
        total, logged = strategy.num_replicas_in_sync, self._examples_log is not None
        train_step = make_train_step(self.state, num_replicas_in_sync=total, xla=self._config.xla)

        @tf.function(reduce_retracing=True)
        def train_steps(batches: Iterator, steps: tf.Tensor, wish: tf.Tensor) -> tuple[tf.Tensor, ...]:
            sums = tf.TensorArray(wish.dtype, size=steps, element_shape=(3,))
            indices = tf.TensorArray(tf.int64, size=steps if logged else 0)
            wait = tf.constant(0.0, tf.float64)
            for i in tf.range(steps):
                before = tf.timestamp()
                batch = next(batches)
                with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                    wait += tf.timestamp() - before
                sums = sums.write(i, self._local_sum(strategy.run(train_step, (batch,))))
                step.assign_add(1)
                if logged:
                    indices = indices.write(i, self._local_indices(batch))
            reduced, wishes = self._sum_with_wishes(sums.stack(), wish)
            return reduced, wishes, wait, indices.stack() if logged else tf.zeros((0,), tf.int64)

        return train_steps

    def _make_evaluation_steps(self) -> tf.types.experimental.GenericFunction:
        strategy, evaluation_step = self._strategy, make_evaluation_step(self.state.model)

        @tf.function(reduce_retracing=True)
        def evaluation_steps_(batches: Iterator, steps: tf.Tensor, wish: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            sums = tf.zeros((3,), wish.dtype)
            for _ in tf.range(steps):
                sums += self._local_sum(strategy.run(evaluation_step, (next(batches),)))
            reduced, wishes = self._sum_with_wishes(sums[None], wish)
            return reduced[0], wishes

        return evaluation_steps_

    def _local_indices(self, batch: dict) -> tf.Tensor:
        """(local replicas x rows,) examples of this process, -1 where there is none."""
        rows = self._config.per_replica_batch_size
        shares = self._strategy.experimental_local_results(batch["indices"])
        return tf.concat([tf.pad(s, [[0, rows - tf.size(s)]], constant_values=-1) for s in shares], axis=0)

    def _sum_with_wishes(self, sums: tf.Tensor, wish: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """(n, 3) sums over all workers, and how many workers wish to stop: the same number on each of them."""
        reduced = self._sum_over_workers(tf.concat([sums, tf.fill((1, 3), wish)], axis=0))
        return reduced[:-1], reduced[-1, 0]

    def _local_sum(self, per_replica: tf.Tensor) -> tf.Tensor:
        return tf.add_n(self._strategy.experimental_local_results(per_replica))

    def _sum_over_workers(self, local: tf.Tensor) -> tf.Tensor:
        """One collective for many steps: the first local replica of each worker brings its worker's sums."""
        if self._config.cluster.workers == 1:
            return local
        count = self._replicas.count

        def reduce() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            is_first = tf.cast(context.replica_id_in_sync_group % count == 0, local.dtype)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, local * is_first)

        return self._strategy.experimental_local_results(self._strategy.run(reduce))[0]
