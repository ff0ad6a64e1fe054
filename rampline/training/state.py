"""What a training changes: the model, the optimizer's slots and the step counter, created in the strategy's scope."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from rampline.config import OptimizerConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.learning_rate import StepLearningRate
from rampline.models import make_model
from rampline.training.checkpoint import load_model_weights


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Variables of one training.

    Attributes:
        model: uint8 images to logits.
        optimizer: built on the model's trainable variables.
        step: scalar int64, updates made so far; the learning rate follows it.
        learning_rate: the schedule.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    step: tf.Variable
    learning_rate: StepLearningRate


def make_state(config: RunConfig, dataset: PreparedDataset, strategy: tf.distribute.Strategy) -> TrainingState:
    """Create model, optimizer and counter: the same initial values for the same seed under every strategy."""
    keras.utils.set_random_seed(config.seed)
    steps_per_epoch = config.steps_per_epoch(dataset.splits["train"])
    with strategy.scope():
        model = make_model(config.model, image_shape=dataset.image_shape, classes=len(dataset.class_names))
        step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step", aggregation=_first_replica())
        # Model.fit updates `iterations` itself; our engines drive the rate from the counter above.
        learning_rate = StepLearningRate(config, steps_per_epoch, None if config.engine == "fit" else step)
        optimizer = make_optimizer(config.optimizer, learning_rate)
        if config.precision == "mixed_float16":
            optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
        optimizer.build(model.trainable_variables)
        make_iterations_atomic(optimizer)
    if Path(config.model.weights).is_dir():
        load_model_weights(Path(config.model.weights), model)
    return TrainingState(model=model, optimizer=optimizer, step=step, learning_rate=learning_rate)


def make_optimizer(
    config: OptimizerConfig, learning_rate: float | keras.optimizers.schedules.LearningRateSchedule
) -> keras.optimizers.Optimizer:
    """The Keras optimizer of that name."""
    decay = config.weight_decay or None
    if config.name == "sgd":
        return keras.optimizers.SGD(learning_rate, momentum=config.momentum, weight_decay=decay)
    if config.name == "rmsprop":
        return keras.optimizers.RMSprop(learning_rate, momentum=config.momentum, weight_decay=decay)
    if config.name == "adamw":
        return keras.optimizers.AdamW(learning_rate, weight_decay=config.weight_decay)
    return keras.optimizers.Adam(learning_rate, weight_decay=decay)


def make_iterations_atomic(optimizer: keras.optimizers.Optimizer) -> None:
    """Let `optimizer.iterations` count every update, also when workers update at once.

    Keras 3.15 writes `assign(self + value)`: two parameter-server workers read the same count and one update is lost,
    which
    skews Adam's bias correction. Can go once `KerasVariable.assign_add` adds in place; a test tells when.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for counter in {id(o._iterations): o._iterations for o in (optimizer, inner)}.values():
        counter.assign_add = counter.value.assign_add


def _first_replica() -> tf.VariableAggregation:
    return tf.VariableAggregation.ONLY_FIRST_REPLICA
