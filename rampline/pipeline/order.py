"""Which examples a replica sees at a step: a function of (seed, epoch) alone, startable at any step."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset


@dataclass(frozen=True, kw_only=True)
class Share:
    """One replica's part of one global batch.

    Attributes:
        indices: (n,) int64, examples in the split; n >= 1.
        weights: (n,) float32, 1 for an example that counts, 0 for filling (a batch smaller than the replica count).
        global_examples: scalar float32, examples that count over all replicas: what the loss is divided by.
        offset: scalar int64, position of `indices[0]` in the global batch.
    """

    indices: tf.Tensor
    weights: tf.Tensor
    global_examples: tf.Tensor
    offset: tf.Tensor


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """A full shuffle of a split per epoch, without a buffer.

    Source: the op of `tf.random.experimental.index_shuffle`, a bijection on [0, examples) keyed by (seed, epoch).
    """

    examples: int
    global_batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Global batches per epoch, the partial last one included."""
        return math.ceil(self.examples / self.global_batch_size)

    def in_whole_batches(self, size: int | None) -> EpochOrder:
        """An order whose global batches all have `size` examples, or all that there are where they are fewer.

        Those that fill no batch are left out. Without a size it is this order.
        """
        if size is None:
            return self
        examples = self.examples // size * size or self.examples
        return dataclasses.replace(self, examples=examples, global_batch_size=size)

    def epoch_of(self, step: tf.Tensor) -> tf.Tensor:
        """0-based epoch of 0-based `step`, int64."""
        return tf.cast(step, tf.int64) // self.steps_per_epoch

    def share(self, step: tf.Tensor, replica: tf.Tensor, replicas: int) -> Share:
        """Part `replica` of `replicas` of the global batch at 0-based `step`; sizes differ by at most one."""
        count = self.examples_in_batch(step)
        first, end, weights = self._rows(count, replica, replicas)
        indices = self.examples_at(step, tf.range(first, end))
        return Share(indices=indices, weights=weights, global_examples=tf.cast(count, tf.float32), offset=first)

    def examples_in_batch(self, step: tf.Tensor) -> tf.Tensor:
        """Scalar int64, examples of the global batch at 0-based `step`."""
        return tf.minimum(self.examples - self._start(step), self.global_batch_size)

    def examples_at(self, step: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """(n,) int64, the examples in these rows of the global batch at 0-based `step`."""
        return self._shuffle(self._start(step) + rows, self.epoch_of(step))

    def indices_from(self, step: tf.Tensor, steps: int) -> tf.Tensor:
        """(n,) int64, the examples of `steps` global batches from `step` on, or of those that its epoch still has."""
        start = self._start(step)
        end = tf.minimum(start + steps * self.global_batch_size, self.examples)
        return self._shuffle(tf.range(start, end), self.epoch_of(step))

    def share_within(self, indices: tf.Tensor, number: tf.Tensor, replica: tf.Tensor, replicas: int) -> Share:
        """As `share`, of global batch `number` of the batches whose examples `indices_from` gave."""
        start = tf.cast(number, tf.int64) * self.global_batch_size
        count = tf.minimum(start + self.global_batch_size, tf.size(indices, tf.int64)) - start
        first, end, weights = self._rows(count, replica, replicas)
        own = indices[start + first : start + end]
        return Share(indices=own, weights=weights, global_examples=tf.cast(count, tf.float32), offset=first)

    def _rows(self, count: tf.Tensor, replica: tf.Tensor, replicas: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """First row, end and weights of a replica's part of a global batch of `count` examples."""
        if replicas == 1:
            return tf.constant(0, tf.int64), count, tf.ones((count,))
        replica = tf.cast(replica, tf.int64)
        low, high = replica * count // replicas, (replica + 1) * count // replicas
        # A replica without an example still takes part in the step: one row of weight 0 keeps every shape non-empty.
        first = tf.minimum(low, count - 1)
        end = tf.maximum(high, first + 1)
        return first, end, tf.fill((end - first,), tf.cast(high > low, tf.float32))

    def _start(self, step: tf.Tensor) -> tf.Tensor:
        """Position in its epoch of the first example of the global batch at `step`."""
        return tf.cast(step, tf.int64) % self.steps_per_epoch * self.global_batch_size

    def _shuffle(self, positions: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        seed = tf.stack([tf.constant(self.seed, tf.int64), epoch])
        return shuffle(positions, seed, tf.constant(self.examples, tf.int64))


def shuffle(positions: tf.Tensor, seed: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Where a shuffle of [0, count) by the (2,) int64 `seed` puts each of the int64 `positions`."""
    # The op uses only the lowest bits of each word, 8 for 50,000 examples: seeds 0 and 256 would give one order.
    key = tf.random.stateless_uniform((3,), seed, minval=None, maxval=None, dtype=tf.uint32, alg="philox")
    # With TensorFlow's 4 rounds epochs of 50,000 examples correlate by 0.7, and neighbours are spread too evenly.
    return tf.raw_ops.RandomIndexShuffle(index=positions, seed=key, max_index=count - 1, rounds=8)


def order_of(config: RunConfig, dataset: PreparedDataset) -> EpochOrder:
    """The order in which a run trains on its dataset."""
    return EpochOrder(examples=dataset.splits["train"], global_batch_size=config.global_batch_size, seed=config.seed)


def evaluation_rows(
    step: tf.Tensor, replica: tf.Tensor, *, replicas: int, batch_size: int, examples: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Rows of one replica at an evaluation step: every example once over all steps and replicas.

    Returns:
        indices (batch_size,) int64 and weights (batch_size,) float32, 0 where padded.
    """
    start = (tf.cast(step, tf.int64) * replicas + tf.cast(replica, tf.int64)) * batch_size
    positions = tf.range(start, start + batch_size)
    return tf.minimum(positions, examples - 1), tf.cast(positions < examples, tf.float32)


def evaluation_steps(*, replicas: int, batch_size: int, examples: int) -> int:
    """Steps that every replica makes in one evaluation."""
    return math.ceil(examples / (replicas * batch_size))
