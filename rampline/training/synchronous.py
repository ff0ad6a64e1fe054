"""Our training loop for `single`, `mirrored` and `multi_worker`: K steps in one call of a compiled function."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.pipeline.batches import ReplicaRange, make_evaluation_dataset, make_train_dataset
from rampline.pipeline.examples import open_examples
from rampline.pipeline.order import EpochOrder, evaluation_steps
from rampline.training.batch_norm import make_average
from rampline.training.engine import StepsDone
from rampline.training.state import TrainingState
from rampline.training.step import make_evaluation_step, make_train_step


class SynchronousEngine:
    """Every replica takes part in every step; gradients are summed over all of them.

    Args:
        config: the run.
        dataset: what it trains on.
        strategy: `OneDeviceStrategy`, `MirroredStrategy` or `MultiWorkerMirroredStrategy`.
        state: made in the strategy's scope.
        worker: index of this process among `config.cluster.workers`.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        dataset: PreparedDataset,
        strategy: tf.distribute.Strategy,
        state: TrainingState,
        worker: int = 0,
    ) -> None:
        self.state = state
        self._config, self._dataset, self._strategy = config, dataset, strategy
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

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """See `Engine.run_steps`; one element per call of the compiled function."""
        if self._batches is None or first_step != self._next_step:
            self._batches = iter(self._train_batches(first_step))
        for start in range(0, steps, self._config.steps_per_call):
            count = min(self._config.steps_per_call, steps - start)
            sums, wait = self._train_steps(self._batches, tf.constant(count))
            self._next_step = first_step + start + count
            yield StepsDone(sums=sums.numpy(), input_wait_seconds=float(wait))

    def evaluate(self, split: str) -> np.ndarray:
        """See `Engine.evaluate`."""
        examples, batch_size = self._dataset.splits[split], self._config.per_replica_batch_size
        replicas = self._replicas

        def make(_: tf.distribute.InputContext) -> tf.data.Dataset:
            return make_evaluation_dataset(
                open_examples(self._dataset, split), total_examples=examples, batch_size=batch_size, replicas=replicas
            )

        batches = self._strategy.distribute_datasets_from_function(make)
        steps = evaluation_steps(replicas=replicas.total, batch_size=batch_size, examples=examples)
        return self._evaluation_steps(iter(batches), tf.constant(steps)).numpy()

    def average_moving_statistics(self) -> None:
        """See `Engine.average_moving_statistics`."""
        if self._average:
            self._average()

    def finish(self) -> None:
        """See `Engine.finish`."""
        tf.function(self._sum_over_workers)(tf.zeros(()))

    def _train_batches(self, first_step: int) -> tf.distribute.DistributedDataset:
        def make(_: tf.distribute.InputContext) -> tf.data.Dataset:
            examples = open_examples(self._dataset, "train")
            shape = {"order": self._order, "data": self._config.data, "replicas": self._replicas}
            return make_train_dataset(examples, **shape, first_step=first_step)

        return self._strategy.distribute_datasets_from_function(make)

    def _make_train_steps(self) -> tf.types.experimental.GenericFunction:
        strategy, step = self._strategy, self.state.step
        total = strategy.num_replicas_in_sync
        train_step = make_train_step(self.state, num_replicas_in_sync=total, xla=self._config.xla)

        @tf.function(reduce_retracing=True)
        def train_steps(batches: Iterator, steps: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            sums = tf.TensorArray(tf.float32, size=steps, element_shape=(3,))
            wait = tf.constant(0.0, tf.float64)
            for i in tf.range(steps):
                before = tf.timestamp()
                batch = next(batches)
                with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
                    wait += tf.timestamp() - before
                sums = sums.write(i, self._local_sum(strategy.run(train_step, (batch,))))
                step.assign_add(1)
            return self._sum_over_workers(sums.stack()), wait

        return train_steps

    def _make_evaluation_steps(self) -> tf.types.experimental.GenericFunction:
        strategy, evaluation_step = self._strategy, make_evaluation_step(self.state.model)

        @tf.function(reduce_retracing=True)
        def evaluation_steps_(batches: Iterator, steps: tf.Tensor) -> tf.Tensor:
            sums = tf.zeros((3,))
            for _ in tf.range(steps):
                sums += self._local_sum(strategy.run(evaluation_step, (next(batches),)))
            return self._sum_over_workers(sums)

        return evaluation_steps_

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
