"""What a training changes: the model, the optimizer's slots and the step counter, created in the strategy's scope."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.study.preflight import FRESH_WEIGHTS
from rampline.training.checkpoint import load_model_weights
from rampline.training.fused_batch_norm import fuse_batch_norm
from rampline.training.models import load_keras_file, make_model
from rampline.training.optimizers import (
    LossScaleOptimizer,
    StepLearningRate,
    make_iterations_atomic,
    make_optimizer,
)
from rampline.training.random_draws import draw_per_replica


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
        if config.engine != "fit":
            fuse_batch_norm(model)
        # Model.fit updates `iterations` itself; our engines drive the rate from the counter above.
        learning_rate = StepLearningRate(config, steps_per_epoch, None if config.engine == "fit" else step)
        optimizer = make_optimizer(config.optimizer, learning_rate)
        if config.precision == "mixed_float16":
            optimizer = LossScaleOptimizer(optimizer)
        if config.cluster.sum == "exact":
            # What it gets is the sum already, see `logical_replicas`.
            optimizer._all_reduce_sum_gradients = list
        optimizer.build(model.trainable_variables)
        make_iterations_atomic(optimizer)
    if strategy.num_replicas_in_sync > 1 and config.cluster.sum == "fast":
        draw_per_replica(model)
    weights = Path(config.model.weights)
    if weights.suffix == ".keras":
        load_keras_file(weights, model)
    elif config.model.weights not in FRESH_WEIGHTS and weights.is_dir():
        load_model_weights(weights, model)
    return TrainingState(model=model, optimizer=optimizer, step=step, learning_rate=learning_rate)


def _first_replica() -> tf.VariableAggregation:
    return tf.VariableAggregation.ONLY_FIRST_REPLICA
