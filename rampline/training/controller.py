"""Epochs, evaluation, checkpoints and events of one training; the engine owns the steps."""

from __future__ import annotations

import dataclasses
import sys
import time

import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.errors import RunFailed
from rampline.events import EventWriter
from rampline.files import write_json
from rampline.learning_rate import learning_rate_at
from rampline.run_directory import RunDirectory
from rampline.training.checkpoint import drop_unfinished, load_checkpoint, save_checkpoint
from rampline.training.engine import Engine, StepsDone
from rampline.training.progress import Progress, last_checkpoint
from rampline.training.step import CORRECT, EXAMPLES, LOSS_SUM


class Controller:
    """Drives an engine through a run, from its last checkpoint if it has one.

    Args:
        config: the run.
        engine: runs steps and evaluations.
        run_directory: where checkpoints are read by all roles, and written by the chief.
        steps_per_epoch: updates per epoch.
        events: where the chief tells what happens; `None` on every other role.
        launched_at: when the run was launched, unix seconds: the start of its wall time.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        engine: Engine,
        run_directory: RunDirectory,
        steps_per_epoch: int,
        events: EventWriter | None,
        launched_at: float,
    ) -> None:
        self.config, self.engine, self.run_directory = config, engine, run_directory
        self.steps_per_epoch, self.events = steps_per_epoch, events
        self._launched_at, self._resumed_at = launched_at, time.monotonic()
        self._input_wait_seconds: float | None = 0.0
        self.attempt = 1 + sum(event["event"] == "started" for event in run_directory.read_events())
        self.progress = self._restore()
        self._restored = self.progress

    def _restore(self) -> Progress:
        if self.events:
            drop_unfinished(self.run_directory.checkpoints)
        checkpoint = last_checkpoint(self.run_directory.checkpoints)
        if checkpoint is None:
            return Progress()
        state = self.engine.state
        progress = load_checkpoint(checkpoint, state.model, state.optimizer)
        state.step.assign(progress.step)
        return progress

    def train(self) -> None:
        """Train to the last epoch, then tell the result; a run that is complete already only tells it again."""
        last_step = self.config.epochs * self.steps_per_epoch
        while self.progress.step < last_step:
            self._train_until(min(self._next_checkpoint(), self._epoch_end()))
            if self.progress.step == self._epoch_end(self.progress.step - 1):
                self.end_epoch()
            else:
                self._save()
        self.engine.finish()
        self._finish()

    def _epoch_end(self, step: int | None = None) -> int:
        step = self.progress.step if step is None else step
        return (step // self.steps_per_epoch + 1) * self.steps_per_epoch

    def _next_checkpoint(self) -> int:
        every = self.config.checkpoint_every_steps
        return (self.progress.step // every + 1) * every if every else sys.maxsize

    def _train_until(self, step: int) -> None:
        started = time.perf_counter()
        for done in self.engine.run_steps(self.progress.step, step - self.progress.step):
            now = time.perf_counter()
            self.record(done, now - started)
            started = now

    def record(self, done: StepsDone, seconds: float) -> None:
        """Count steps that were made; stop at a loss that is not finite.

        Raises:
            RunFailed: naming the step.
        """
        bad = np.flatnonzero(~np.isfinite(done.losses))
        if bad.size:
            step = self.progress.step + int(bad[0]) + 1
            epoch = self.progress.epoch + 1
            raise RunFailed(
                f"the loss is {done.losses[bad[0]]} at step {step} (epoch {epoch}): try a lower learning_rate.peak"
            )
        if done.input_wait_seconds is None or self._input_wait_seconds is None:
            self._input_wait_seconds = None
        else:
            self._input_wait_seconds += done.input_wait_seconds
        sums = np.add(self.progress.epoch_sums, done.sums.sum(axis=0, dtype=np.float64))
        self._update(
            step=self.progress.step + len(done.sums),
            epoch_sums=tuple(float(value) for value in sums),
            epoch_seconds=self.progress.epoch_seconds + seconds,
        )
        self._tell_progress(done, seconds)

    def _tell_progress(self, done: StepsDone, seconds: float) -> None:
        if self.events is None:
            return
        sums = self.progress.epoch_sums
        self.events.progress(
            epoch=self.progress.epoch + 1,
            step=(self.progress.step - 1) % self.steps_per_epoch + 1,
            steps_per_epoch=self.steps_per_epoch,
            loss=sums[LOSS_SUM] / sums[EXAMPLES],
            accuracy=sums[CORRECT] / sums[EXAMPLES],
            images_per_second=float(done.sums[:, EXAMPLES].sum()) / max(seconds, 1e-9),
        )

    def end_epoch(self) -> None:
        """Evaluate, tell the epoch's metrics, save."""
        started = time.perf_counter()
        self.engine.average_moving_statistics()
        validation = self.engine.evaluate("validation")
        metrics = self._epoch_metrics(validation, time.perf_counter() - started)
        epoch, accuracy = self.progress.epoch + 1, float(validation[CORRECT] / validation[EXAMPLES])
        best = self.progress
        if accuracy > best.best_val_accuracy:
            best = dataclasses.replace(best, best_epoch=epoch, best_step=best.step, best_val_accuracy=accuracy)
        self.progress = dataclasses.replace(
            best,
            epoch=epoch,
            epoch_sums=(0.0, 0.0, 0.0),
            epoch_seconds=0.0,
            train_seconds=best.train_seconds + metrics["epoch_seconds"],
            metrics=metrics,
        )
        self._input_wait_seconds = 0.0
        if self.events:
            self.events.write("epoch", epoch=epoch, metrics=metrics)
        self._save()

    def _epoch_metrics(self, validation: np.ndarray, validation_seconds: float) -> dict[str, float]:
        train, seconds = self.progress.epoch_sums, self.progress.epoch_seconds
        last_step = tf.constant(self.progress.step - 1)
        metrics = {
            "train_loss": train[LOSS_SUM] / train[EXAMPLES],
            "train_accuracy": train[CORRECT] / train[EXAMPLES],
            "val_loss": float(validation[LOSS_SUM] / validation[EXAMPLES]),
            "val_accuracy": float(validation[CORRECT] / validation[EXAMPLES]),
            "learning_rate": float(learning_rate_at(self.config, self.steps_per_epoch, last_step)),
            "epoch_seconds": seconds,
            "validation_seconds": validation_seconds,
            "images_per_second": train[EXAMPLES] / seconds,
            "elapsed_seconds": self._elapsed_seconds(),
        }
        if self._input_wait_seconds is not None:
            metrics["input_wait_fraction"] = self._input_wait_seconds / seconds
        return metrics

    def _elapsed_seconds(self) -> float:
        return self._restored.elapsed_seconds + time.monotonic() - self._resumed_at

    def _wall_seconds(self) -> float:
        return self._restored.wall_seconds + time.time() - self._launched_at

    def _update(self, **changes: object) -> None:
        self.progress = dataclasses.replace(self.progress, **changes)  # type: ignore[arg-type]

    def _save(self) -> None:
        self.engine.average_moving_statistics()
        if self.events is None:
            return
        self._update(elapsed_seconds=self._elapsed_seconds(), wall_seconds=self._wall_seconds())
        state = self.engine.state
        path = save_checkpoint(self.run_directory.checkpoints, self.progress, state.model, state.optimizer)
        self.events.write("checkpoint", epoch=self.progress.epoch, step=self.progress.step, path=str(path))

    def _finish(self) -> None:
        if self.events is None:
            return
        progress = self.progress
        result = {
            "status": "complete",
            "epochs": progress.epoch,
            "steps": progress.step,
            "best_epoch": progress.best_epoch,
            "best_val_accuracy": progress.best_val_accuracy,
            "train_seconds": progress.train_seconds,
            "wall_seconds": self._wall_seconds(),
            "attempts": self.attempt,
            "metrics": progress.metrics,
        }
        write_json(self.run_directory.result_file, result)
        metrics = {"train_seconds": progress.train_seconds}
        best = {"best_epoch": progress.best_epoch, "best_val_accuracy": progress.best_val_accuracy}
        self.events.write("finished", metrics=metrics, **best)
