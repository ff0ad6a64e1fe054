"""Epochs, evaluation, checkpoints and events of one training; the engine owns the steps."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.config.learning_rate import learning_rate_curve
from rampline.errors import Preempted, RunFailed
from rampline.files import delete_unfinished, remove, write_json
from rampline.jobs.exit_status import one_line
from rampline.record.checkpoints import Progress, is_best_missing, without_best
from rampline.record.events import EventWriter, finite
from rampline.record.run_directory import RunDirectory
from rampline.training.checkpoint import restore_newest, save_checkpoint
from rampline.training.early_stop import decide, describe_stop
from rampline.training.engine import Engine, StepCallback, StepsDone, StopRequested
from rampline.training.objective import CORRECT, EXAMPLES, LOSS_SUM, PENALTY_SUM
from rampline.training.probes import measure_run
from rampline.training.state import TrainingState
from rampline.training.tensorboard import ScalarWriter


@dataclass(frozen=True, kw_only=True)
class Launch:
    """When an attempt began.

    Attributes:
        at: `time.monotonic()` of the launcher, which counts from the machine's start for all its processes.
        wall_seconds_before: wall time of the attempts before it.
    """

    at: float
    wall_seconds_before: float = 0.0


class RunClock:
    """Starts when it is made; `resume` adds what a checkpoint says of the attempts before."""

    def __init__(self, launch: Launch) -> None:
        self._launch, self._started_at = launch, time.monotonic()
        self._restored = Progress()

    def resume(self, restored: Progress) -> None:
        """Go on from where the checkpoint was saved."""
        self._restored = restored

    def elapsed_seconds(self) -> float:
        """Time in training, evaluation and checkpoints, without what was lost with a killed attempt."""
        return self._restored.elapsed_seconds + time.monotonic() - self._started_at

    def startup_seconds(self) -> float:
        """Time since the launch of this attempt."""
        return time.monotonic() - self._launch.at

    def wall_seconds(self) -> float:
        """Time since the first launch, less the pauses between attempts."""
        return max(self._launch.wall_seconds_before, self._restored.wall_seconds) + self.startup_seconds()


def epoch_metrics(state: TrainingState, progress: Progress, validation: np.ndarray) -> dict[str, float | None]:
    """Metrics of the epoch whose last step `progress` has made; `None` for one that is not finite.

    `validation` has the (width,) sums over that split.
    """
    train, seconds, waited = progress.epoch_sums, progress.epoch_seconds, progress.epoch_input_wait_seconds
    last_step = tf.constant(progress.step - 1, keras.config.floatx())
    metrics: dict[str, float | None] = {
        "train_loss": train[LOSS_SUM] / train[EXAMPLES],
        "train_accuracy": train[CORRECT] / train[EXAMPLES],
        "val_loss": float(validation[LOSS_SUM] / validation[EXAMPLES]),
        "val_accuracy": float(validation[CORRECT] / validation[EXAMPLES]),
        "learning_rate": float(state.learning_rate.rate(last_step)),
        "epoch_seconds": seconds,
        "images_per_second": train[EXAMPLES] / seconds,
    }
    for split, sums in (("train", train), ("val", validation)):
        metrics |= {f"{split}_{name}": value for name, value in state.objective.figures(sums).items()}
    if train[PENALTY_SUM]:
        metrics["train_regularization_loss"] = train[PENALTY_SUM] / train[EXAMPLES]
    metrics |= {} if waited is None else {"input_wait_fraction": waited / seconds}
    return finite(metrics)


def next_epoch(progress: Progress, metrics: dict[str, float | None]) -> Progress:
    """Where the training is once the epoch with these metrics has ended; the first of equal epochs stays the best."""
    epoch, accuracy = progress.epoch + 1, metrics["val_accuracy"] or 0.0
    if accuracy > progress.best_val_accuracy:
        best = {"best_epoch": epoch, "best_step": progress.step, "best_val_accuracy": accuracy}
        progress = dataclasses.replace(progress, **best)  # type: ignore[arg-type]
    loss = metrics["val_loss"]
    if loss is not None and (progress.best_val_loss is None or loss < progress.best_val_loss):
        progress = dataclasses.replace(progress, best_loss_epoch=epoch, best_val_loss=loss)
    return dataclasses.replace(
        progress,
        epoch=epoch,
        epoch_sums=(0.0,) * len(progress.epoch_sums),
        epoch_seconds=0.0,
        epoch_input_wait_seconds=0.0,
        train_seconds=progress.train_seconds + progress.epoch_seconds,
        metrics=metrics,
    )


class Controller:
    """Drives an engine through a run, from its last checkpoint if it has one.

    Args:
        run_directory: where checkpoints are read by all roles, and written by the chief.
        workers: how many train.
        events: where the chief tells what happens; `None` on every other role.
        attempt: which start of the run this is, from 1.
        callback: is told of every save.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        engine: Engine,
        run_directory: RunDirectory,
        steps_per_epoch: int,
        workers: int,
        events: EventWriter | None,
        attempt: int,
        launch: Launch,
        callback: StepCallback,
    ) -> None:
        self.config, self.engine, self.run_directory = config, engine, run_directory
        self.steps_per_epoch, self.events, self._workers = steps_per_epoch, events, workers
        self.attempt, self._clock, self._callback = attempt, RunClock(launch), callback
        self._statistics: np.ndarray | None = None
        self.progress = self._restore()
        self._clock.resume(self.progress)
        goal = run_directory.read_goal()
        self._last_epoch = goal.epoch if goal else config.epochs
        self._is_decided = False
        self._stopped: str | None = None
        self._scalar_seconds, self._scalars = 0.0, ScalarWriter(run_directory.tensorboard, warn=self._warn)
        if self.events:
            self._scalars.drop_from(self.progress.epoch + 1)

    def _restore(self) -> Progress:
        state = self.engine.state
        restored = restore_newest(self.run_directory.checkpoints, state.model, state.optimizer, warn=self._warn)
        progress = restored.progress if restored else Progress()
        if is_best_missing(self.run_directory.checkpoints, progress):
            lost, progress = progress, without_best(progress)
            best = f"the best from epoch {progress.best_epoch or lost.epoch + 1} on is kept instead"
            self._warn(f"the best checkpoint (epoch {lost.best_epoch}, step {lost.best_step}) is missing: {best}")
        state.step.assign(progress.step)
        if restored:
            self.engine.write_statistics(restored.replica_statistics)
        # All roles have read what they need before the chief tidies up.
        if self.engine.average(progress.step) != progress.step:
            found = f"(this one: step {progress.step})"
            raise RunFailed(f"the workers found different checkpoints {found}: do they see one folder?")
        if self.events:
            delete_unfinished(self.run_directory.checkpoints, "step-*")
            for damaged in restored.damaged if restored else ():
                remove(damaged)
            # A checkpoint outlives the line about its epoch where the power goes off.
            told = {event["epoch"] for event in self.run_directory.read_events("epoch")}
            if progress.epoch and progress.epoch not in told:
                self.events.write("epoch", epoch=progress.epoch, metrics=progress.metrics)
        return progress

    def _warn(self, message: str) -> None:
        if self.events:
            self.events.write("warning", message=message)

    def tell_start(self, examples: Mapping[str, int]) -> None:
        """Tell what begins, or goes on; `examples` of each split."""
        if self.events is None:
            return
        config, state, figures = self.config, self.engine.state, dict[str, Any]()
        curve = learning_rate_curve(state.learning_rate.rate, config.epochs, self.steps_per_epoch)
        peak = config.peak_learning_rate
        if state.compiled_with:
            # float32 has no more digits.
            peak = float(f"{max(rate for _, rate in curve):.6g}")
            figures |= {"compiled_with": dict(state.compiled_with.words)}
        if config.stop.is_set:
            figures |= {"stops": describe_stop(config)}
        if config.micro_batch_size:
            figures |= {"micro_batch_size": config.micro_batch_size}
        self.events.write(
            "started",
            startup_seconds=self._clock.startup_seconds(),
            **figures,
            attempt=self.attempt,
            replicas=config.replicas,
            num_replicas_in_sync=config.num_replicas_in_sync,
            workers=self._workers,
            per_replica_batch_size=config.per_replica_batch_size,
            global_batch_size=config.global_batch_size,
            steps_per_epoch=self.steps_per_epoch,
            peak_learning_rate=peak,
            epochs=config.epochs,
            first_epoch=self.progress.epoch + 1,
            first_step=self.progress.step,
            train_examples=examples["train"],
            validation_examples=examples["validation"],
            parameters=state.model.count_params(),
            learning_rate_curve=curve,
        )

    def train(self) -> None:
        """Train to the last epoch, or until it is decided, then tell the result; one that is over only tells it again.

        A run whose goal is an earlier epoch rests there: it leaves with what its result would be.

        Raises:
            Preempted: when a role was asked to stop: a checkpoint is saved, and all roles leave at the same step.
        """
        with self.stopping():
            while not self.is_over:
                self._train_until(min(self._next_checkpoint(), self._epoch_end))
                self.end_steps()
        self.engine.finish()
        wall_seconds = self._clock.wall_seconds()
        if self._is_decided or self._last_epoch == self.config.epochs:
            if self.config.explain.steps or self.config.profile:
                self._measure()
            if self.events:
                result = self._result(wall_seconds, self.events)
                write_json(self.run_directory.result_file, result)
                self.events.finished(result)
        elif self.events:
            write_json(self.run_directory.rung_file(self._last_epoch), self._result(wall_seconds, self.events))
            self.events.write("rested", epoch=self._last_epoch)

    def _measure(self) -> None:
        """Measure where a step's time goes. The training is complete: what fails is told of, and not tried again."""
        mark, what = self.run_directory.probing_file, "where a step's time goes is not measured"
        was_tried = self.events is not None and mark.is_file()
        if self.events:
            write_json(mark, {"attempt": self.attempt})
        # After that: another role may be killed before the chief goes on.
        if self._agree(was_tried):
            self._warn(f"{what}: the probes ended an earlier attempt")
            return
        try:
            measure_run(self.config, self.engine, self.run_directory, self.events, workers=self._workers)
        except StopRequested:
            if self.events:
                remove(mark)
                self.events.write("stopped", epoch=self.progress.epoch, step=self.progress.step)
            raise Preempted("stopped on request during the probes") from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the run has its result
            self._warn(f"{what}: {one_line(error)}")
            return
        if self.events:
            remove(mark)

    @property
    def is_over(self) -> bool:
        """Whether no step is left to make; the same on all roles."""
        return self._is_decided or self.progress.epoch >= self._last_epoch

    def is_enough(self) -> bool:
        """Whether the chief finds that the run is decided; inside an epoch it is the time that has come."""
        return self.events is not None and self._why() is not None

    def decide(self) -> None:
        """Let the chief find whether the run is decided, and tell all roles, which call it alike.

        Each by its own clock, one would leave and the others would wait for it.
        """
        if not self.config.stop.is_set:
            return
        self._stopped = self._why() if self.events else None
        self._is_decided = self._agree(self._stopped is not None)
        if self.events and self._stopped:
            self.events.write("decided", epoch=self.progress.epoch, stopped=self._stopped)

    def _why(self) -> str | None:
        return decide(self.config, self.progress, self._clock.wall_seconds())

    def _agree(self, is_decided: bool) -> bool:
        """What the chief says; on the others `is_decided` is false."""
        return self.engine.average(float(is_decided)) > 0

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Turn a stop that all roles have agreed on into a checkpoint."""
        try:
            yield
        except StopRequested:
            # In the middle of an evaluation, what each replica had before it was averaged is still to be kept.
            statistics = self._statistics if self._statistics is not None else self.engine.read_statistics()
            self._save(statistics)
            progress = self.progress
            where = f"epoch {progress.epoch + 1}, step {progress.step}"
            if self.events:
                self.events.write("stopped", epoch=progress.epoch + 1, step=progress.step)
            raise Preempted(f"stopped on request at {where}") from None

    def _next_checkpoint(self) -> int:
        every = self.config.checkpoint_every_steps
        return (self.progress.step // every + 1) * every if every else sys.maxsize

    def _train_until(self, step: int) -> None:
        started = time.perf_counter()
        for done in self.engine.run_steps(self.progress.step, step - self.progress.step, self.is_enough):
            now = time.perf_counter()
            self.record(done, now - started)
            started = now
            if done.stop and not (self.config.stop.is_set and self._agree(self.is_enough())):
                raise StopRequested

    def record(self, done: StepsDone, seconds: float) -> None:
        """Count steps that were made; stop at a loss that is not finite.

        Raises:
            RunFailed: naming the step.
        """
        bad = np.flatnonzero(~np.isfinite(done.losses))
        if bad.size:
            where = f"step {self.progress.step + int(bad[0]) + 1} (epoch {self.progress.epoch + 1})"
            raise RunFailed(f"the loss is {done.losses[bad[0]]} at {where}: try a lower learning_rate.peak")
        waited, more = self.progress.epoch_input_wait_seconds, done.input_wait_seconds
        sums = done.sums.sum(axis=0, dtype=np.float64)
        if len(done.sums):
            self.tell_progress(len(done.sums), sums, seconds)
        self.progress = self._after(len(done.sums), sums)
        self._update(
            epoch_seconds=self.progress.epoch_seconds + seconds,
            epoch_input_wait_seconds=None if waited is None or more is None else waited + more,
        )

    def tell_progress(self, steps: int, sums: np.ndarray, seconds: float) -> None:
        """Tell of steps that are not counted yet, with their sums, (width,), and how long they took together."""
        if self.events:
            after = self._after(steps, sums)
            means = after.epoch_sums
            self.events.progress(
                epoch=after.epoch + 1,
                step=(after.step - 1) % self.steps_per_epoch + 1,
                steps_per_epoch=self.steps_per_epoch,
                loss=means[LOSS_SUM] / means[EXAMPLES],
                accuracy=means[CORRECT] / means[EXAMPLES],
                images_per_second=float(sums[EXAMPLES]) / max(seconds, 1e-9),
            )

    def _after(self, steps: int, sums: np.ndarray) -> Progress:
        """Where the training is after further steps of the epoch, with their sums."""
        whole = sums.astype(np.float64)
        whole[: len(self.progress.epoch_sums)] += self.progress.epoch_sums
        epoch_sums = tuple(float(value) for value in whole)
        return dataclasses.replace(self.progress, step=self.progress.step + steps, epoch_sums=epoch_sums)

    @property
    def _epoch_end(self) -> int:
        return (self.progress.epoch + 1) * self.steps_per_epoch

    def end_steps(self) -> None:
        """After some steps: end the epoch, or save inside it."""
        if self.progress.step == self._epoch_end:
            self.end_epoch()
        else:
            self.decide()
            self._save_together(self.engine.read_statistics())

    def end_epoch(self) -> None:
        """Evaluate, tell the epoch's metrics, save."""
        started = time.perf_counter()
        self._statistics = self.engine.read_statistics()
        self.engine.average_moving_statistics()
        state = self.engine.state
        with state.averaged_weights():
            validation = self.engine.evaluate("validation")
        self._statistics = None
        metrics = epoch_metrics(state, self.progress, validation)
        metrics |= {
            "validation_seconds": time.perf_counter() - started,
            "elapsed_seconds": self._clock.elapsed_seconds(),
        }
        self.progress = next_epoch(self.progress, metrics)
        if self.events:
            self.events.write("epoch", epoch=self.progress.epoch, metrics=metrics)
            started = time.perf_counter()
            self._scalars.write_epoch(self.progress.epoch, metrics, self._weights())
            self._scalar_seconds += time.perf_counter() - started
        self.decide()
        is_best = self.progress.best_epoch == self.progress.epoch
        every = self.config.checkpoint_every_steps
        is_due = self.progress.epoch % self.config.checkpoint_every_epochs == 0
        if is_best or self.is_over or is_due or (every and self.progress.step % every == 0):
            self._save_together()

    def _weights(self) -> dict[str, np.ndarray]:
        """What TensorBoard shows as histograms."""
        if self.config.tensorboard != "histograms":
            return {}
        weights = self.engine.state.model.trainable_variables
        return {weight.path: np.asarray(weight.value) for weight in weights}

    def _update(self, **changes: object) -> None:
        self.progress = dataclasses.replace(self.progress, **changes)  # type: ignore[arg-type]

    def _save_together(self, replica_statistics: np.ndarray | None = None) -> None:
        """Save, and let the others wait for that here, where it counts as saving.

        Waiting in the sum of their next steps, they would give up where a save takes much longer than a step.
        """
        self._save(replica_statistics)
        self.engine.finish()

    def _save(self, replica_statistics: np.ndarray | None = None) -> None:
        self._callback.advance("save")
        self._check_weights()
        if self.events is None:
            return
        self._update(elapsed_seconds=self._clock.elapsed_seconds(), wall_seconds=self._clock.wall_seconds())
        state, started = self.engine.state, time.perf_counter()
        path = save_checkpoint(
            self.run_directory.checkpoints,
            self.progress,
            state.model,
            state.optimizer,
            replica_statistics=replica_statistics,
            keep=self.config.checkpoint_keep,
        )
        seconds = time.perf_counter() - started
        where = {"epoch": self.progress.epoch, "step": self.progress.step}
        self.events.write("checkpoint", **where, path=str(path), seconds=seconds)
        self._callback.advance("saved")

    def _check_weights(self) -> None:
        """Let no weights be saved that are not finite; all roles have the same, and fail alike.

        The loss of the step that made them may have been finite. Every later attempt would go on from there, and fail.

        Raises:
            RunFailed: naming the weights and the step.
        """
        for weights in self.engine.state.model.trainable_variables:
            if not np.isfinite(np.asarray(weights.value)).all():
                after = f"after step {self.progress.step}: try a lower learning_rate.peak"
                raise RunFailed(f"the weights {weights.path} are not finite {after}")

    def _result(self, wall_seconds: float, events: EventWriter) -> dict[str, Any]:
        """The content of `result.json`; `stopped` says why it was over before its last epoch, see `decide`."""
        progress = self.progress
        return {
            "status": "complete",
            "epochs": progress.epoch,
            "stopped": self._stopped,
            # What was made of a further epoch before the time was over does not count.
            "steps": progress.epoch * self.steps_per_epoch,
            "best_epoch": progress.best_epoch,
            "best_val_accuracy": progress.best_val_accuracy,
            "train_seconds": progress.train_seconds,
            "wall_seconds": wall_seconds,
            "attempts": self.run_directory.attempts_until(self.attempt),
            "metrics": progress.metrics,
            "logging_seconds": events.seconds + self._scalar_seconds,
        }
