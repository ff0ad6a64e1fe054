"""`Model.fit` for `single` and `mirrored`: Keras owns the loop, the controller the rest, by one callback."""

from __future__ import annotations

import time
from collections.abc import Iterator

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.pipeline.batches import ReplicaRange, make_train_dataset
from rampline.pipeline.examples import open_examples
from rampline.pipeline.order import EpochOrder
from rampline.training.controller import Controller
from rampline.training.engine import StepsDone
from rampline.training.state import TrainingState
from rampline.training.synchronous import SynchronousEngine


class FitEngine(SynchronousEngine):
    """Evaluates as the loop does; training steps are Keras' own."""

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """Refused: `fit_with_controller` runs them."""
        raise TypeError("Model.fit runs its own steps")


def fit_with_controller(
    *,
    config: RunConfig,
    dataset: PreparedDataset,
    state: TrainingState,
    strategy: tf.distribute.Strategy,
    controller: Controller,
) -> None:
    """Train with `Model.fit` from the epoch the controller is at; the same examples in the same order as the loop."""
    with strategy.scope():
        state.model.compile(
            optimizer=state.optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            # "auto" would turn XLA on where there is a GPU, and a mirrored step does not compile.
            jit_compile=False,
        )
    order = EpochOrder(examples=dataset.splits["train"], global_batch_size=config.global_batch_size, seed=config.seed)
    examples = open_examples(dataset, "train")
    first_step = controller.progress.step
    batches = make_train_dataset(
        examples, order=order, data=config.data, replicas=ReplicaRange(), first_step=first_step
    )
    state.model.fit(
        batches.map(lambda batch: (batch["images"], batch["labels"])),
        steps_per_epoch=order.steps_per_epoch,
        initial_epoch=controller.progress.epoch,
        epochs=config.epochs,
        callbacks=[_Bridge(controller, dataset.splits["train"])],
        verbose=0,
    )


class _Bridge(keras.callbacks.Callback):
    """Hands Keras' epochs to the controller."""

    def __init__(self, controller: Controller, train_examples: int) -> None:
        super().__init__()
        self._controller, self._train_examples = controller, train_examples
        self._started = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._started = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self._controller.events and logs:
            self._controller.events.progress(
                epoch=self._controller.progress.epoch + 1,
                step=batch + 1,
                steps_per_epoch=self._controller.steps_per_epoch,
                loss=float(logs["loss"]),
                accuracy=float(logs["accuracy"]),
            )

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        seconds, steps, examples = (
            time.perf_counter() - self._started,
            self._controller.steps_per_epoch,
            self._train_examples,
        )
        means = np.array([logs["loss"], logs["accuracy"], 1.0]) if logs else np.full(3, np.nan)
        # Keras gives the epoch's means alone; spread evenly they add up to the same sums.
        sums = np.tile(means * examples / steps, (steps, 1))
        self._controller.record(StepsDone(sums=sums, input_wait_seconds=None), seconds)
        self._controller.end_epoch()
