"""`Model.fit` for `single` and `mirrored`: Keras owns the loop, the controller the rest, by one callback."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.data.compiled import as_written
from rampline.pipeline.batches import make_train_dataset, on_devices
from rampline.pipeline.order import EpochOrder
from rampline.training.controller import Controller
from rampline.training.engine import TRAIN, StepCallback, StepsDone, StopRequested
from rampline.training.objective import LOSS_SUM, PENALTY_SUM, Batch, Objective
from rampline.training.step import penalty_of
from rampline.training.synchronous import SynchronousEngine, keep_iterator
from rampline.training.timings import CACHED, PIPELINE, UPDATE


class FitEngine(SynchronousEngine):
    """Evaluates as the loop does; training steps are Keras' own.

    Each replica gets the share of the global batch that it has in the loop, and each example the weight 1 / examples of
    the global batch, times that of its class: the sum over the replicas is then the mean over what was really there.
    Keras' own way, equal shares and the mean of the replicas' means, fails at a batch that the replicas cannot share
    equally, and is another training in a partial last one.
    """

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        model, objective = self.state.model, self.state.objective
        spec = self._make_dataset(0, self._order).element_spec
        with self._strategy.scope():
            sums = _EpochSums(objective)
            _count_penalties(model, sums)
            model.compile(
                optimizer=self.state.optimizer,
                loss=_SumOfLosses(objective),
                weighted_metrics=[sums],
                # "auto" would turn XLA on where there is a GPU, and a mirrored step does not compile.
                jit_compile=False,
            )
            # At the end of each call Keras would put the averages in the place of the weights for good.
            self.state.optimizer.finalize_variable_values = lambda _: None
            # Before each call Keras would average the replicas' first batches, which differ in length, for their shape.
            model._symbolic_build(data_batch=spec)
            model._maybe_symbolic_build = lambda **_: None

    def run_steps(
        self, first_step: int, steps: int, is_enough: Callable[[], bool] = lambda: False
    ) -> Iterator[StepsDone]:
        """One call of `Model.fit`, and all its steps. A whole run is trained by `train`."""
        ends = _StepEnds(self._callback, TRAIN)
        self._fit(self._share(self._make_dataset(first_step, self._order)), ends, steps_per_epoch=steps)
        yield StepsDone(sums=_sums_of_steps(ends.sums), input_wait_seconds=None)

    def train(self, controller: Controller) -> None:
        """Train with `Model.fit` from the step the controller is at; the same examples in the same order as the loop.

        An epoch that was stopped in its middle is completed by a call of its own, with the steps that are left.
        """
        if controller.is_over:
            return
        per_epoch, bridge = self._order.steps_per_epoch, _Bridge(controller, self._callback)
        done = controller.progress.step - controller.progress.epoch * per_epoch
        if 0 < done < per_epoch:
            rest = self._make_dataset(controller.progress.step, self._order)
            self._fit(self._share(rest), bridge, steps_per_epoch=per_epoch - done)
        elif done:
            controller.end_epoch()
        epochs = self._config.epochs - controller.progress.epoch
        if not controller.is_over:
            rest = self._make_dataset(controller.progress.step, self._order)
            self._fit(self._share(rest), bridge, steps_per_epoch=per_epoch, epochs=epochs)

    def make_probe(self, kind: str, batch_size: int | None = None) -> Callable[[int], float]:
        """Steps of `Model.fit`, timed from the end of its first to the end of its last."""
        if kind in (PIPELINE, UPDATE):
            return super().make_probe(kind, batch_size)
        dataset = self._make_dataset(0, self._order.in_whole_batches(batch_size))
        if kind == CACHED:
            dataset = dataset.take(self._replicas.count).cache().repeat()
        shares = self._share(dataset)

        def measure(steps: int) -> float:
            ends = _StepEnds(self._callback, kind)
            self._fit(shares, ends, steps_per_epoch=steps + 1)
            return (ends.seconds[-1] - ends.seconds[0]) / steps

        return measure

    def _make_dataset(self, first_step: int, order: EpochOrder) -> tf.data.Dataset:
        """Endless `(images, labels, weights)`, each element one replica's share, as in `make_train_dataset`."""
        shape = {"order": order, "data": self._config.data, "replicas": self._replicas}
        batches, objective = (
            make_train_dataset(self._open("train"), **shape, first_step=first_step),
            self.state.objective,
        )

        def describe(batch: Batch) -> tuple[tf.Tensor, ...]:
            weights, count = (tf.cast(batch[name], keras.config.floatx()) for name in ("weights", "global_examples"))
            weights *= tf.cast(objective.weights_of(batch["labels"]), weights.dtype)
            return batch["images"], batch["labels"], weights / count

        return batches.map(as_written(describe))

    def _share(self, dataset: tf.data.Dataset) -> tf.distribute.DistributedDataset:
        """The replicas' shares by one iterator: `Model.fit` would make one at each call, and delete it in the end."""
        shares = on_devices(self._strategy, dataset, self._config.data)
        iterator = keep_iterator(iter(shares))
        # By its class, Keras takes it for what it is, and Python looks for `__iter__` there alone.
        shares.__class__ = type("SharesOfOneIterator", (type(shares),), {"__iter__": lambda _: iterator})
        return shares

    def _fit(self, shares: tf.distribute.DistributedDataset, callback: keras.callbacks.Callback, **length: int) -> None:
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: self.state.step.assign_add(1))
        self.state.model.fit(shares, callbacks=[count, callback], verbose=0, **length)


class _SumOfLosses(keras.losses.Loss):
    """The run's loss of each example, summed with the weights of the examples."""

    def __init__(self, objective: Objective) -> None:
        super().__init__(reduction="sum")
        self._objective = objective

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        # Keras has made numbers of classes.
        labels = tf.cast(y_true, tf.int32) if y_true.shape.rank == 1 else y_true
        batch = {"labels": labels, "weights": tf.ones(tf.shape(labels)[:1])}
        return self._objective.losses(y_pred, batch, training=False)


class _EpochSums(keras.metrics.Metric):
    """The run's sums, see `Objective.sums`, over the steps since an epoch, or a call of `Model.fit`, began.

    In float64: the sums of single steps can be told from it too.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__(name="sums", dtype="float64")
        self._objective = objective
        self._sums = self.add_variable((objective.width,), "zeros", dtype=self.dtype, name="sums")

    def update_state(self, y_true: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor) -> None:
        batch = {"labels": y_true, "weights": tf.sign(sample_weight)}
        losses = self._objective.losses(y_pred, batch, training=True)
        sums = self._objective.sums(y_pred, losses, batch, tf.zeros((), losses.dtype))
        self._sums.assign_add(tf.cast(sums, self.dtype))

    def add_penalty(self, penalty: tf.Tensor, examples: tf.Tensor) -> None:
        """Count the penalty of a replica's share of so many examples."""
        counted = tf.one_hot(PENALTY_SUM, self._objective.width, dtype=penalty.dtype) * penalty * examples
        self._sums.assign_add(tf.cast(counted, self.dtype))

    def result(self) -> tf.Tensor:
        # A replica gives what it has summed itself, and Keras logs the mean over the replicas.
        context = tf.distribute.get_replica_context()
        return self._sums * (context.num_replicas_in_sync if context else 1)


def _count_penalties(model: keras.Model, sums: _EpochSums) -> None:
    """Give `sums` the penalties with the loss: when Keras updates metrics, it has changed the weights already.

    Each replica has the part of the penalty that it has of the examples, as in `loss_and_sums`.
    """
    compute_loss = model.compute_loss

    @functools.wraps(compute_loss)
    def compute_and_count(x: Any, y: Any, y_pred: Any, sample_weight: Any, *others: Any, **named: Any) -> Any:
        loss, context = compute_loss(x, y, y_pred, sample_weight, *others, **named), tf.distribute.get_replica_context()
        if not model.losses or context is None:
            return loss
        penalty = penalty_of(model)
        examples = tf.cast(tf.math.count_nonzero(sample_weight), penalty.dtype)
        sums.add_penalty(penalty, examples)
        share = examples / context.all_reduce(tf.distribute.ReduceOp.SUM, examples)
        # Keras has given each replica the same part.
        return loss + penalty * (share - 1 / context.num_replicas_in_sync)

    model.compute_loss = compute_and_count


class _StepEnds(keras.callbacks.Callback):
    """When each step ended, `time.perf_counter()`, and the sums until then."""

    def __init__(self, callback: StepCallback, kind: str) -> None:
        super().__init__()
        self._callback, self._kind = callback, kind
        self.seconds: list[float] = []
        self.sums: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        # Reading the sums waits for the step, as the bridge of a training does.
        self.sums.append(np.asarray(logs["sums"]))
        self.seconds.append(time.perf_counter())
        self._callback.advance(self._kind)
        if self._callback.should_stop():
            raise StopRequested


class _Bridge(keras.callbacks.Callback):
    """Hands Keras' epochs to the controller."""

    def __init__(self, controller: Controller, callback: StepCallback) -> None:
        super().__init__()
        self._controller, self._callback = controller, callback
        self._started, self._sums = 0.0, list[np.ndarray]()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._started, self._sums = time.perf_counter(), []
        self._callback.advance(TRAIN)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any]) -> None:
        self._callback.advance(TRAIN)
        sums = np.asarray(logs["sums"])
        self._sums.append(sums)
        # A loss that is not finite ends the run when it is recorded.
        if self._callback.should_stop() or not np.isfinite(sums[LOSS_SUM]):
            self._record()
            raise StopRequested
        if self._controller.events:
            self._controller.tell_progress(len(self._sums), sums, time.perf_counter() - self._started)
        # Keras leaves the epoch here, and then calls `on_epoch_end`.
        self.model.stop_training = self._controller.is_enough()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self._record()
        self._controller.end_steps()
        self.model.stop_training = self._controller.is_over

    def _record(self) -> None:
        done = StepsDone(sums=_sums_of_steps(self._sums), input_wait_seconds=None)
        self._controller.record(done, time.perf_counter() - self._started)


def _sums_of_steps(sums: list[np.ndarray]) -> np.ndarray:
    """(steps, width): Keras gives the sums since the epoch's, or the call's, first step."""
    return np.diff(sums, axis=0, prepend=0.0)
