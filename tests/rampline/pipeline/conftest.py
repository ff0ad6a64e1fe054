"""One split of real digits, and batches as NumPy arrays."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import tensorflow as tf

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.pipeline.batches import ReplicaRange, make_train_dataset
from rampline.pipeline.examples import Examples, open_examples
from rampline.pipeline.order import EpochOrder

Batches = list[dict[str, np.ndarray]]


@pytest.fixture(scope="session")
def train(digits: PreparedDataset) -> Examples:
    return open_examples(digits, "train")


@pytest.fixture(scope="session")
def order(digits: PreparedDataset) -> EpochOrder:
    """120 examples in batches of 28: five steps an epoch, the last of 8 examples."""
    assert digits.splits["train"] == 120
    return EpochOrder(examples=120, global_batch_size=28, seed=3)


def arrays(dataset: tf.data.Dataset) -> Iterator[dict[str, np.ndarray]]:
    return dataset.as_numpy_iterator()


@pytest.fixture(scope="session")
def train_batches(train: Examples, order: EpochOrder) -> Callable[..., Batches]:
    """`train_batches(12, first=0, count=1, total=1, first_step=0, augment=…)`: that many train batches."""

    def make(elements: int, *, first: int = 0, count: int = 1, total: int = 1, first_step: int = 0, **data) -> Batches:
        examples = data.pop("examples", train)
        replicas = ReplicaRange(first=first, count=count, total=total)
        dataset = make_train_dataset(
            examples, order=data.pop("order", order), data=DataConfig(**data), replicas=replicas, first_step=first_step
        )
        return list(arrays(dataset.take(elements)))

    return make


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Batches, Batches], None]:
    """`assert_same(found, expected)`: every array of every batch is equal, bit for bit."""

    def check(found: Batches, expected: Batches) -> None:
        assert len(found) == len(expected) > 0
        for left, right in zip(found, expected, strict=True):
            assert left.keys() == right.keys()
            for name in left:
                np.testing.assert_array_equal(left[name], right[name], err_msg=name)

    return check
