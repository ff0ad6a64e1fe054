"""Batches of real digits: from any step on, for any number of replicas, whatever the prefetching."""

import dataclasses
import time

import numpy as np
import pytest
import tensorflow as tf

from rampline.config import DataConfig
from rampline.pipeline.batches import (
    ReplicaRange,
    make_evaluation_dataset,
    make_step_batch,
    make_steps_dataset,
    make_train_dataset,
    on_devices,
)
from rampline.pipeline.examples import Examples, open_examples
from rampline.pipeline.order import EpochOrder

# Two epochs and a bit.
STEPS = 12


def joined(parts: list[dict[str, np.ndarray]], name: str) -> np.ndarray:
    """The rows that count of several shares, one after another."""
    return np.concatenate([part[name][part["weights"] == 1] for part in parts])


def test_a_batch_has_the_examples_of_its_step(train_batches, order, digits):
    batch = train_batches(1, first_step=7)[0]
    assert {name: (value.shape, value.dtype) for name, value in batch.items()} == {
        "images": ((28, 28, 28, 1), np.uint8),
        "labels": ((28,), np.int32),
        "weights": ((28,), np.float32),
        "global_examples": ((), np.float32),
        "indices": ((28,), np.int64),
    }
    indices = order.share(tf.constant(7), tf.constant(0), 1).indices.numpy()
    pixels = np.fromfile(digits.images_file("train"), np.uint8).reshape(120, 28, 28, 1)
    np.testing.assert_array_equal(batch["indices"], indices)
    np.testing.assert_array_equal(batch["images"], pixels[indices])
    np.testing.assert_array_equal(batch["labels"], digits.labels("train")[indices])
    assert pixels.max() > 200


def test_batch_sizes_of_two_epochs(train_batches):
    sizes = [len(batch["labels"]) for batch in train_batches(10)]
    assert sizes == [28, 28, 28, 28, 8] * 2
    assert [float(batch["global_examples"]) for batch in train_batches(10)] == sizes


MIXED = ("flip", {"RandomBrightness": {"factor": 0.2}}, "MixUp")


@pytest.mark.parametrize("first_step", [*(pytest.param(step, marks=pytest.mark.long) for step in (1, 4, 9)), 5])
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("augment", ["flip_crop", pytest.param(MIXED, id="mixed")])
def test_starting_at_a_step_gives_the_tail_of_the_whole_sequence(
    train_batches, assert_same, first_step, replicas, augment
):
    whole = train_batches(STEPS * replicas, count=replicas, total=replicas, augment=augment)
    elements = (STEPS - first_step) * replicas
    tail = train_batches(elements, count=replicas, total=replicas, first_step=first_step, augment=augment)
    assert_same(tail, whole[first_step * replicas :])


@pytest.mark.parametrize("first_step", [*(pytest.param(step, marks=pytest.mark.long) for step in (0, 61)), 31, 33])
@pytest.mark.parametrize("first, count", [(0, 3), pytest.param(1, 1, marks=pytest.mark.long)])
def test_steps_whose_order_is_made_together_are_those_made_one_by_one(train, first_step, first, count):
    """120 examples in batches of 2: 60 steps an epoch, in groups of 32 and 28; three replicas, one without examples."""
    order, total = EpochOrder(examples=120, global_batch_size=2, seed=9), 3
    replicas = ReplicaRange(first=first, count=count, total=total)
    shape = {"order": order, "data": DataConfig(), "replicas": replicas, "first_step": first_step}
    found = list(make_train_dataset(train, **shape).take(65 * count).as_numpy_iterator())
    assert len(found) == 65 * count
    for element, batch in enumerate(found):
        step, replica = first_step + element // count, first + element % count
        share = order.share(tf.constant(step), tf.constant(replica), total)
        indices = np.where(share.weights.numpy() > 0, share.indices.numpy(), -1)
        np.testing.assert_array_equal(batch["indices"], indices, err_msg=f"step {step}, replica {replica}")
        np.testing.assert_array_equal(batch["images"], train.take(share.indices)[0].numpy())
        np.testing.assert_array_equal(batch["weights"], share.weights.numpy())
        assert float(batch["global_examples"]) == 2


@pytest.mark.parametrize("augment", ["flip_crop", pytest.param(MIXED, id="mixed", marks=pytest.mark.long)])
def test_the_shares_of_three_replicas_are_the_batch_of_one(train_batches, augment):
    one = train_batches(STEPS, augment=augment)
    three = train_batches(3 * STEPS, count=3, total=3, augment=augment)
    for step, batch in enumerate(one):
        parts = three[3 * step : 3 * step + 3]
        for name in ("images", "labels"):
            np.testing.assert_array_equal(joined(parts, name), batch[name], err_msg=f"{name} of step {step}")
        assert {float(part["global_examples"]) for part in parts} == {len(batch["labels"])}


def test_replicas_in_several_processes_are_those_of_one_process(train_batches, assert_same):
    """Two workers with two replicas each."""
    together = train_batches(4 * STEPS, count=4, total=4)
    first = train_batches(2 * STEPS, first=0, count=2, total=4)
    second = train_batches(2 * STEPS, first=2, count=2, total=4)
    in_turn = [part for step in range(STEPS) for own in (first, second) for part in own[2 * step : 2 * step + 2]]
    assert_same(in_turn, together)


def test_a_batch_smaller_than_the_number_of_replicas(train_batches):
    order = EpochOrder(examples=120, global_batch_size=59, seed=0)
    parts = train_batches(9, count=3, total=3, order=order)[6:]
    assert [len(part["labels"]) for part in parts] == [1, 1, 1]
    assert sum(float(part["weights"].sum()) for part in parts) == 2
    assert {float(part["global_examples"]) for part in parts} == {2.0}


@pytest.mark.parametrize("augment", ["none", pytest.param(MIXED, id="mixed")])
def test_whole_steps_are_the_batches_of_one_replica(train, order, train_batches, assert_same, augment):
    data = DataConfig(augment=augment)

    @tf.function
    def labels(first_step, steps):
        """As on a parameter-server worker: the dataset is made inside."""
        dataset = make_steps_dataset(train, order=order, data=data, first_step=first_step, steps=steps)
        return dataset.reduce(tf.constant(0, tf.int64), lambda n, batch: n + tf.size(batch["weights"], tf.int64))

    first_step, steps = tf.constant(3, tf.int64), tf.constant(6, tf.int64)
    dataset = make_steps_dataset(train, order=order, data=data, first_step=first_step, steps=steps)
    expected = train_batches(6, first_step=3, augment=augment)
    whole = list(dataset.as_numpy_iterator())
    assert [batch.pop("step") for batch in whole] == list(range(3, 9))
    assert_same(whole, expected)
    assert int(labels(first_step, steps)) == sum(len(batch["labels"]) for batch in expected) == 148
    one = make_step_batch(train, order=order, data=data, step=tf.constant(4, tf.int64))
    assert int(one.pop("step")) == 4
    assert_same([{name: value.numpy() for name, value in one.items()}], expected[1:2])


@pytest.mark.parametrize("prefetch", ["off", 4])
def test_prefetching_changes_nothing_in_a_batch(train_batches, assert_same, prefetch):
    batches = train_batches(2 * STEPS, count=2, total=2, augment="flip", prefetch=prefetch)
    assert_same(batches, train_batches(2 * STEPS, count=2, total=2, augment="flip", prefetch="auto"))


@pytest.mark.parametrize("is_distributed", [False, True])
def test_off_makes_no_batch_before_its_step_asks_for_it(train, order, is_distributed):
    """TensorFlow adds a prefetch of its own, and makes maps parallel, which work ahead, and copies ahead to devices."""
    made = {}
    for prefetch in ("off", "auto"):
        takes = []

        class Counted(Examples):
            def take(self, indices, takes=takes):
                def count(rows):
                    takes.append(len(rows))
                    return rows

                return super().take(
                    tf.ensure_shape(tf.numpy_function(count, [indices], tf.int64, stateful=False), (None,))
                )

        examples = Counted(**{field.name: getattr(train, field.name) for field in dataclasses.fields(train)})
        data = DataConfig(augment="flip", prefetch=prefetch)
        shape = {"order": order, "data": data, "replicas": ReplicaRange(), "first_step": 0}
        dataset = make_train_dataset(examples, **shape)
        if is_distributed:
            dataset = on_devices(tf.distribute.OneDeviceStrategy("CPU:0"), dataset, data)
        batches = iter(dataset)
        next(batches)
        next(batches)
        time.sleep(0.5)
        made[prefetch] = len(takes)
    assert made["off"] == 2 < made["auto"]


@pytest.mark.parametrize("total, batch_size", [(1, 16), (1, 120), (2, 25), (3, 7)])
def test_evaluation_sees_every_example_once(digits, total, batch_size):
    examples, count = open_examples(digits, "test"), digits.splits["test"]
    assert count == 120
    parts = []
    for replica in range(total):
        place = ReplicaRange(first=replica, count=1, total=total)
        dataset = make_evaluation_dataset(examples, total_examples=count, batch_size=batch_size, replicas=place)
        assert dataset.element_spec["images"].shape == (batch_size, 28, 28, 1)
        parts += list(dataset.as_numpy_iterator())
    pixels = np.fromfile(digits.images_file("test"), np.uint8).reshape(count, -1)
    seen = joined(parts, "images").reshape(-1, 28 * 28)
    assert len(seen) == 120
    assert sorted(map(bytes, seen)) == sorted(map(bytes, pixels))
    assert np.bincount(joined(parts, "labels")).tolist() == [12] * 10
