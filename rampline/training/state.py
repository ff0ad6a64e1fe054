"""What a training changes: the model, the optimizer's slots and the step counter, created in the strategy's scope."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import keras
import tensorflow as tf

from rampline.config import RunConfig
from rampline.config.keras_names import FRESH_WEIGHTS
from rampline.config.learning_rate import learning_rate_at
from rampline.data.dataset import PreparedDataset
from rampline.errors import ConfigError
from rampline.training.batch_norm import fuse_batch_norm, is_synchronized
from rampline.training.checkpoint import load_model_weights
from rampline.training.compiled_model import CompiledWith, read_compiled
from rampline.training.models import downloads_whole, load_keras_file, make_model
from rampline.training.objective import Objective, make_class_weights, make_cross_entropy, make_metrics
from rampline.training.optimizers import (
    LossScaleOptimizer,
    StepLearningRate,
    clip_the_sum,
    fuse_update,
    make_iterations_atomic,
    make_optimizer,
    make_swap,
)
from rampline.training.random_draws import draw_per_replica


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Variables of one training, and what it does with them.

    Attributes:
        model: uint8 images to logits.
        optimizer: built on the model's trainable variables.
        step: scalar int64, updates made so far; the learning rate follows it.
        learning_rate: the schedule.
        objective: the loss and the metrics.
        compiled_with: what a user's function has compiled its model with; `None` where the study says it.
        swap: puts weights and their averages in each other's place, where the optimizer keeps some.
    """

    model: keras.Model
    optimizer: keras.optimizers.Optimizer
    step: tf.Variable
    learning_rate: StepLearningRate
    objective: Objective
    compiled_with: CompiledWith | None = None
    swap: Callable[[], None] = lambda: None

    @contextmanager
    def averaged_weights(self) -> Iterator[None]:
        """Let the model have the averages of its weights in the block, where the optimizer keeps some."""
        self.swap()
        try:
            yield
        finally:
            self.swap()


def make_state(
    config: RunConfig,
    dataset: PreparedDataset,
    strategy: tf.distribute.Strategy,
    *,
    advance: Callable[[str], None] = lambda _: None,
) -> TrainingState:
    """Create model, optimizer and counter: the same initial values for the same seed under every strategy.

    `advance` is called while weights are downloaded, see `downloads_whole`, and then with `build`.

    Raises:
        ConfigError: when the model does not go with the run's other settings.
    """
    keras.utils.set_random_seed(config.seed)
    classes = len(dataset.class_names)
    with strategy.scope(), downloads_whole(advance):
        model = make_model(config.model, image_shape=dataset.image_shape, classes=classes)
        if is_synchronized(model):
            _check_synchronized(config)
        first = tf.VariableAggregation.ONLY_FIRST_REPLICA
        step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step", aggregation=first)
        if config.engine != "fit":
            fuse_batch_norm(model)
    # The blocks of a download say nothing of how long the rest may take.
    advance("build")
    compiled_with = read_compiled(model, name=config.model.name, classes=classes)
    # Before the optimizer is built: one such as ScheduleFreeAdamW begins with a copy of the weights.
    weights = Path(config.model.weights)
    if weights.suffix == ".keras":
        load_keras_file(weights, model)
    elif config.model.weights not in FRESH_WEIGHTS and weights.is_dir():
        load_model_weights(weights, model)
    rate = partial(learning_rate_at, config, config.steps_per_epoch(dataset.splits["train"]))
    if compiled_with:
        rate = compiled_with.learning_rate
    with strategy.scope():
        learning_rate = StepLearningRate(rate, step)
        optimizer = compiled_with.optimizer if compiled_with else make_optimizer(config.optimizer, learning_rate)
        optimizer.learning_rate = learning_rate
        optimizer = _prepare(optimizer, config)
        if not optimizer.built:
            optimizer.build(model.trainable_variables)
        make_iterations_atomic(optimizer)
    if strategy.num_replicas_in_sync > 1 and config.cluster.sum == "fast":
        draw_per_replica(model)
    return TrainingState(
        model=model,
        optimizer=optimizer,
        step=step,
        learning_rate=learning_rate,
        objective=make_objective(config, dataset, compiled_with),
        compiled_with=compiled_with,
        swap=make_swap(optimizer, strategy),
    )


def make_objective(config: RunConfig, dataset: PreparedDataset, compiled_with: CompiledWith | None) -> Objective:
    """What the study says; loss and metrics that the model is compiled with go before."""
    loss, metrics, one_hot = make_cross_entropy(config.loss.label_smoothing), make_metrics(config.metrics), False
    if compiled_with and compiled_with.loss:
        loss = compiled_with.loss
    if compiled_with and compiled_with.metrics is not None:
        metrics, one_hot = compiled_with.metrics, compiled_with.one_hot
    weights = make_class_weights(config, dataset.labels("train"), len(dataset.class_names))
    return Objective(loss, metrics, one_hot=one_hot, class_weights=weights)


def _check_synchronized(config: RunConfig) -> None:
    """All replicas must come to the layer together, as often as each other, and outside of a compiled function."""
    many, parts = config.num_replicas_in_sync > 1, config.batch.accumulate
    refused = {
        "strategy=parameter_server": not config.is_synchronous,
        "cluster.sum=exact": config.cluster.sum == "exact",
        f"batch.accumulate={parts}": many and parts != 1,
        "xla=true": many and config.xla,
    }
    for setting in (setting for setting, holds in refused.items() if holds):
        name = config.model.name
        raise ConfigError(f"model.name={name!r} has a BatchNormalization with synchronized=True: not with {setting}")


def _prepare(optimizer: keras.optimizers.Optimizer, config: RunConfig) -> keras.optimizers.Optimizer:
    """What an optimizer of Keras needs to be fast, and the same for any number of replicas."""
    fuse_update(optimizer)
    whole = LossScaleOptimizer(optimizer) if config.precision == "mixed_float16" else optimizer
    if config.cluster.sum == "exact":
        # What it gets is the sum already, see `logical_replicas`.
        whole._all_reduce_sum_gradients = list
    clip_the_sum(optimizer)
    return whole
