"""The order of examples: each exactly once per epoch, whatever the number of replicas and the size of a batch."""

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from rampline.pipeline.order import EpochOrder, evaluation_rows, evaluation_steps


def shares(order: EpochOrder, replicas: int, steps: range) -> list[list[tuple]]:
    """For each step, each replica's (indices, weights, global_examples, offset)."""

    @tf.function
    def share(step, replica):
        part = order.share(step, replica, replicas)
        return part.indices, part.weights, part.global_examples, part.offset

    one = [[share(tf.constant(step), tf.constant(replica)) for replica in range(replicas)] for step in steps]
    return [[tuple(value.numpy() for value in part) for part in step] for step in one]


def epoch_order(order: EpochOrder, epoch: int, replicas: int = 1) -> list[int]:
    """Examples that count, in the order in which one epoch meets them."""
    steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
    parts = [part for step in shares(order, replicas, steps) for part in step]
    return [int(i) for indices, weights, *_ in parts for i in indices[weights == 1]]


SIZES = [(1, 1), (7, 3), (10, 64), (37, 36)]
SIZES += [pytest.param(*size, marks=pytest.mark.long) for size in ((10, 10), (37, 5), (97, 16), (100, 25))]


@pytest.mark.parametrize("replicas", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 4)), 3])
@pytest.mark.parametrize("examples, batch", SIZES)
def test_every_example_is_used_once_per_epoch(examples, batch, replicas):
    order = EpochOrder(examples=examples, global_batch_size=batch, seed=1)
    for epoch in (0, 1, 5):
        assert sorted(epoch_order(order, epoch, replicas)) == list(range(examples))


@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("examples, batch", SIZES)
def test_the_order_does_not_depend_on_the_number_of_replicas(examples, batch, replicas):
    order = EpochOrder(examples=examples, global_batch_size=batch, seed=1)
    assert epoch_order(order, 2, replicas) == epoch_order(order, 2)


def test_orders_are_as_random_as_permutations():
    """Of as many examples as CIFAR-10 has, sorted by their ten classes."""
    examples, batch = 50_000, 32

    def order(seed: int, epoch: int) -> np.ndarray:
        epochs = EpochOrder(examples=examples, global_batch_size=batch, seed=seed)
        steps = epochs.steps_per_epoch
        return epochs.indices_from(tf.constant(epoch * steps), steps).numpy()

    orders = [order(0, 0), order(0, 1), order(0, 256), order(1, 0), order(256, 0), np.arange(examples)]
    correlations = np.corrcoef(orders) - np.eye(len(orders))
    assert np.abs(correlations).max() < 6 / np.sqrt(examples)
    for shuffled in orders[:-1]:
        classes = (shuffled // 5_000)[: examples // batch * batch].reshape(-1, batch)
        counts = np.stack([(classes == label).sum(axis=1) for label in range(10)])
        assert counts.var() == pytest.approx(batch * 0.1 * 0.9, rel=0.05)  # of a draw, which batches are


def test_the_order_is_a_function_of_seed_and_epoch():
    orders = {
        (seed, epoch): tuple(epoch_order(EpochOrder(examples=60, global_batch_size=16, seed=seed), epoch))
        for seed in (0, 1, 2)
        for epoch in (0, 1, 2)
    }
    assert len(set(orders.values())) == 9
    assert tuple(range(60)) not in orders.values()
    again = EpochOrder(examples=60, global_batch_size=16, seed=1)
    assert tuple(epoch_order(again, 2)) == orders[1, 2]


def test_the_order_does_not_depend_on_the_batch_size():
    small = EpochOrder(examples=60, global_batch_size=7, seed=4)
    large = EpochOrder(examples=60, global_batch_size=32, seed=4)
    assert epoch_order(small, 3) == epoch_order(large, 3)


@pytest.mark.parametrize("size, used, steps", [(50, 100, 2), (60, 120, 2), (512, 120, 1)])
def test_whole_batches_leave_out_what_fills_none(size, used, steps):
    order = EpochOrder(examples=120, global_batch_size=28, seed=4).in_whole_batches(size)
    counts = [int(parts[0][2]) for parts in shares(order, 2, range(2 * steps))]
    assert counts == [used // steps] * 2 * steps


def test_an_epoch_is_well_shuffled():
    """A random order of 1,000 has about 1 fixed point, and neighbours about 333 apart."""
    found = np.array(epoch_order(EpochOrder(examples=1000, global_batch_size=100, seed=0), 0))
    assert np.sum(found == np.arange(1000)) < 8
    assert 290 < np.mean(np.abs(np.diff(found))) < 375


def test_shares_of_a_batch_differ_by_at_most_one_and_know_their_place():
    order = EpochOrder(examples=108, global_batch_size=25, seed=3)
    for step, parts in enumerate(shares(order, 3, range(5))):
        counts = [int(weights.sum()) for _, weights, *_ in parts]
        total = 25 if step < 4 else 8
        assert sum(counts) == total
        assert max(counts) - min(counts) <= 1
        assert [float(part[2]) for part in parts] == [total] * 3
        assert [int(part[3]) for part in parts] == [0, counts[0], counts[0] + counts[1]]


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_a_replica_without_an_example_has_one_row_that_does_not_count(replicas):
    order = EpochOrder(examples=7, global_batch_size=6, seed=0)
    parts = shares(order, replicas, range(1, 2))[0]
    assert [len(indices) for indices, *_ in parts] == [1] * replicas
    assert sorted(float(weights[0]) for _, weights, *_ in parts) == [0.0] * (replicas - 1) + [1.0]
    assert {float(part[2]) for part in parts} == {1.0}
    assert all(0 <= int(indices[0]) < 7 for indices, *_ in parts)


def test_types_and_epochs():
    order = EpochOrder(examples=10, global_batch_size=4, seed=0)
    indices, weights, count, offset = shares(order, 1, range(1))[0][0]
    assert (indices.dtype, weights.dtype, count.dtype, offset.dtype) == (np.int64, np.float32, np.float32, np.int64)
    assert order.steps_per_epoch == 3
    assert [int(order.epoch_of(tf.constant(step))) for step in (0, 2, 3, 8, 9)] == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("examples, replicas, batch", [(1797, 1, 64), (1797, 2, 32), (1797, 3, 100), (1797, 8, 7)])
def test_evaluation_counts_every_example_once(examples, replicas, batch):
    counted: Counter[int] = Counter()
    steps = evaluation_steps(replicas=replicas, batch_size=batch, examples=examples)
    for step in range(steps):
        for replica in range(replicas):
            place = (tf.constant(step), tf.constant(replica))
            rows, weights = evaluation_rows(*place, replicas=replicas, batch_size=batch, examples=examples)
            assert rows.shape == weights.shape == (batch,)
            assert int(tf.reduce_max(rows)) < examples
            counted.update(rows.numpy()[weights.numpy() == 1].tolist())
    assert counted == dict.fromkeys(range(1797), 1)
    assert (steps - 1) * replicas * batch < examples <= steps * replicas * batch
