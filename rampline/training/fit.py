"""`Model.fit` for `single` and `mirrored`: Keras owns the loop, the controller the rest, by one callback."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.compiled import as_written
from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.explain.probes import CACHED, PIPELINE
from rampline.pipeline.batches import ReplicaRange, make_train_dataset
from rampline.pipeline.examples import Examples, open_examples
from rampline.pipeline.order import EpochOrder
from rampline.training.controller import Controller
from rampline.training.engine import StepsDone
from rampline.training.iterators import KeepIterators
from rampline.training.lifeline import Lifeline, StopRequested
from rampline.training.state import TrainingState
from rampline.training.synchronous import SynchronousEngine


class FitEngine(SynchronousEngine):
    """Evaluates as the loop does; training steps are Keras' own."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        with self._strategy.scope():
            self.state.model.compile(
                optimizer=self.state.optimizer,
                loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                metrics=["accuracy"],
                # "auto" would turn XLA on where there is a GPU, and a mirrored step does not compile.
                jit_compile=False,
            )

    def run_steps(self, first_step: int, steps: int) -> Iterator[StepsDone]:
        """Refused: `fit_with_controller` runs them."""
        raise TypeError("Model.fit runs its own steps")

    def make_probe(self, kind: str) -> Callable[[int], float]:
        """See `Engine.make_probe`: steps of `Model.fit`, from the end of its first to the end of its last."""
        if kind == PIPELINE:
            return super().make_probe(kind)
        model = self.state.model
        batches = make_fit_batches(self._open("train"), self._order, self._config, first_step=0)
        if kind == CACHED:
            batches = batches.take(1).cache().repeat()

        def measure(steps: int) -> float:
            stamps = _StepEnds(self._lifeline, kind)
            model.fit(batches, steps_per_epoch=steps + 1, epochs=1, callbacks=[stamps, KeepIterators()], verbose=0)
            return (stamps.ends[-1] - stamps.ends[0]) / steps

        return measure


def make_fit_batches(examples: Examples, order: EpochOrder, config: RunConfig, *, first_step: int) -> tf.data.Dataset:
    """Endless `(images, labels)` of whole global batches from `first_step` on, which `Model.fit` shares out itself."""
    shape = {"order": order, "data": config.data, "replicas": ReplicaRange()}
    batches = make_train_dataset(examples, **shape, first_step=first_step)
    return batches.map(as_written(lambda batch: (batch["images"], batch["labels"])))


class _StepEnds(keras.callbacks.Callback):
    """When each step ended: `time.perf_counter()`."""

    def __init__(self, lifeline: Lifeline, kind: str) -> None:
        super().__init__()
        self._lifeline, self._kind = lifeline, kind
        self.ends: list[float] = []

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        # Reading the loss waits for the step, as the bridge of a training does.
        float((logs or {}).get("loss", 0.0))
        self.ends.append(time.perf_counter())
        self._lifeline.advance(self._kind)


def fit_with_controller(
    *,
    config: RunConfig,
    dataset: PreparedDataset,
    state: TrainingState,
    controller: Controller,
    lifeline: Lifeline,
) -> None:
    """Train with `Model.fit` from the step the controller is at; the same examples in the same order as the loop.

    An epoch that was stopped in its middle is completed by a call of its own, with the steps that are left.
    """
    order = EpochOrder(examples=dataset.splits["train"], global_batch_size=config.global_batch_size, seed=config.seed)
    examples = open_examples(dataset, "train")

    def fit(first_step: int, steps_per_epoch: int, epochs: int) -> None:
        state.model.fit(
            make_fit_batches(examples, order, config, first_step=first_step),
            steps_per_epoch=steps_per_epoch,
            initial_epoch=controller.progress.epoch,
            epochs=epochs,
            callbacks=[_Bridge(controller, order, lifeline), KeepIterators()],
            verbose=0,
        )

    done = controller.progress.step - controller.progress.epoch * order.steps_per_epoch
    if 0 < done < order.steps_per_epoch:
        fit(controller.progress.step, order.steps_per_epoch - done, controller.progress.epoch + 1)
    elif done:
        controller.end_epoch()
    if controller.progress.epoch < config.epochs:
        fit(controller.progress.step, order.steps_per_epoch, config.epochs)


class _Bridge(keras.callbacks.Callback):
    """Hands Keras' epochs to the controller."""

    def __init__(self, controller: Controller, order: EpochOrder, lifeline: Lifeline) -> None:
        super().__init__()
        self._controller, self._order, self._lifeline = controller, order, lifeline
        self._started, self._first_step = 0.0, 0

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._started, self._first_step = time.perf_counter(), self._controller.progress.step
        self._lifeline.advance("train")

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._lifeline.advance("train")
        if self._controller.events and logs:
            self._controller.events.progress(
                epoch=self._controller.progress.epoch + 1,
                step=self._first_step % self._order.steps_per_epoch + batch + 1,
                steps_per_epoch=self._controller.steps_per_epoch,
                loss=float(logs["loss"]),
                accuracy=float(logs["accuracy"]),
            )
        if self._lifeline.should_stop():
            self._record(batch + 1, logs)
            raise StopRequested

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        end = (self._controller.progress.epoch + 1) * self._order.steps_per_epoch
        self._record(end - self._first_step, logs)
        self._controller.end_epoch()

    def _record(self, steps: int, logs: dict | None) -> None:
        """Keras gives the means since the epoch's, or the call's, first step; spread evenly they add up to the sums."""
        means = np.array([logs["loss"], logs["accuracy"], 1.0]) if logs else np.full(3, np.nan)
        last = self._first_step + steps
        examples = self._examples_until(last) - self._examples_until(self._first_step)
        sums = np.tile(means * examples / steps, (steps, 1))
        seconds = time.perf_counter() - self._started
        self._controller.record(StepsDone(sums=sums, input_wait_seconds=None), seconds)

    def _examples_until(self, step: int) -> int:
        """Examples of the steps before `step`; the last batch of an epoch may be smaller."""
        epochs, steps = divmod(step, self._order.steps_per_epoch)
        return epochs * self._order.examples + steps * self._order.global_batch_size
