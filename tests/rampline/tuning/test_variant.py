"""How many images a second the settings of a trial make: of the steps that were timed."""

import dataclasses

import pytest
import tensorflow as tf
from runs import make_config

from rampline.data.dataset import PreparedDataset
from rampline.tuning.bench import Variant

# Three steps an epoch, of which the last has two of its 120 examples.
BATCH = 59


@pytest.mark.parametrize("engine", ["loop", "fit"])
def test_the_images_of_rounds_are_those_of_their_steps(engine: str, digits: PreparedDataset) -> None:
    config = dataclasses.replace(make_config("single", batch=BATCH), engine=engine)
    variant = Variant(config, digits, tf.distribute.OneDeviceStrategy("/cpu:0"))
    images = [variant.run(1)[0] for _ in range(3)]
    assert sorted(images) == [2, BATCH, BATCH]
