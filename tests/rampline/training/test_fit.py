"""`engine: fit`: what it reports is what the loop reports, and together what plain Keras does."""

import dataclasses
import gc
import re
import weakref
from collections.abc import Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from role_functions import RunRoles, train_whole
from runs import make_config

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.jobs.tf_config import ALONE
from rampline.pipeline.batches import make_step_batch
from rampline.pipeline.examples import open_examples
from rampline.pipeline.order import EpochOrder
from rampline.record.checkpoints import Progress
from rampline.training import fit, synchronous
from rampline.training.controller import epoch_metrics
from rampline.training.engine import StepCallback, StopRequested
from rampline.training.state import make_state
from rampline.training.strategy import make_strategy
from rampline.training.timings import REAL
from rampline.training.train import make_engine

# Of 120 examples 2 are left for the last batch.
BATCH, STEPS = 59, 3


def train_epoch(config: RunConfig, digits: PreparedDataset) -> dict[str, float | None]:
    """The metrics of one epoch by the engine of `config`."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    state = make_state(config, digits, strategy)
    engine = make_engine(config, digits, strategy, state, ALONE)
    sums = np.concatenate([done.sums for done in engine.run_steps(0, STEPS)]).sum(axis=0)
    progress = Progress(step=STEPS, epoch_sums=tuple(sums), epoch_seconds=1.0)
    return epoch_metrics(state, progress, engine.evaluate("validation"))


def keras_loss(config: RunConfig, digits: PreparedDataset) -> float:
    """The loss of the same epoch as plain `Model.fit` tells it."""
    model = make_state(config, digits, tf.distribute.get_strategy()).model
    order = EpochOrder(examples=120, global_batch_size=BATCH, seed=config.seed)
    examples = open_examples(digits, "train")
    steps = [make_step_batch(examples, order=order, data=config.data, step=tf.constant(step)) for step in range(STEPS)]
    optimizer = keras.optimizers.SGD(config.peak_learning_rate, momentum=config.optimizer.momentum)
    model.compile(optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = tf.data.Dataset.from_generator(
        lambda: ((step["images"], step["labels"]) for step in steps),
        output_signature=(tf.TensorSpec((None, 28, 28, 1), tf.uint8), tf.TensorSpec((None,), tf.int32)),
    )
    return model.fit(batches, epochs=1, verbose=0).history["loss"][0]


def test_loss_and_regularisation_are_told_apart_and_are_the_loops(digits: PreparedDataset) -> None:
    loop = make_config("single", model="small_models:regularised", batch=BATCH)
    fit = dataclasses.replace(loop, engine="fit")
    metrics = [train_epoch(config, digits) for config in (loop, fit)]
    for name in ("train_loss", "train_regularization_loss", "train_accuracy", "val_loss"):
        ours, theirs = (figures[name] for figures in metrics)
        assert ours == pytest.approx(theirs, rel=1e-5)
    penalty = metrics[1]["train_regularization_loss"] or 0.0
    assert penalty > 0.1
    assert (metrics[1]["train_loss"] or 0.0) + penalty == pytest.approx(keras_loss(fit, digits), rel=1e-5)


@pytest.fixture
def iterators(monkeypatch) -> list[weakref.ref]:
    """All iterators over the replicas' shares that are kept."""
    made, keep = [], synchronous.keep_iterator

    def note(iterator: Iterator) -> Iterator:
        made.append(weakref.ref(iterator))
        return keep(iterator)

    monkeypatch.setattr(fit, "keep_iterator", note)
    return made


@pytest.mark.parametrize("replicas", [1, 2])
def test_all_rounds_of_a_probe_have_one_iterator_and_a_stop_leaves_it(
    replicas: int, iterators: list[weakref.ref], digits: PreparedDataset
) -> None:
    config = make_config("mirrored", replicas=replicas, virtual_devices=replicas)
    config = dataclasses.replace(config, engine="fit")
    strategy, asked = make_strategy(config), list[bool]()
    callback = StepCallback(should_stop=lambda: bool(asked))
    engine = make_engine(config, digits, strategy, make_state(config, digits, strategy), ALONE, callback=callback)
    probe = engine.make_probe(REAL)
    assert all(probe(2) > 0 for _ in range(3))
    asked.append(True)
    steps = int(engine.state.step.numpy())
    with pytest.raises(StopRequested):
        probe(20)
    assert int(engine.state.step.numpy()) == steps + 1
    del engine, probe
    gc.collect()
    (iterator,) = iterators
    assert iterator() is not None
    keras.backend.clear_session()


def test_a_loss_that_is_not_finite_ends_the_run_at_its_step(run_roles: RunRoles, tmp_path: Path) -> None:
    messages = []
    for engine in ("loop", "fit"):
        config = dataclasses.replace(make_config("single", model="small_models:exploding"), engine=engine)
        with pytest.raises(RunFailed) as failure:
            run_roles(train_whole, config, tmp_path / engine)
        messages.append(str(failure.value))
    assert re.search(r"at step [2-5] \(epoch 1\)", messages[0])
    assert messages[0] == messages[1]
