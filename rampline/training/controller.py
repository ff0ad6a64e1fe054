"""Epochs, evaluation, checkpoints and events of one training; the engine owns the steps."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from rampline.config import RunConfig
from rampline.errors import Preempted, RunFailed
from rampline.events import EventWriter
from rampline.files import write_json
from rampline.run_directory import RunDirectory
from rampline.training.checkpoint import drop_damaged, drop_unfinished, restore_newest, save_checkpoint
from rampline.training.clock import Launch, RunClock
from rampline.training.engine import Engine, StepsDone
from rampline.training.lifeline import Lifeline, StopRequested
from rampline.training.measurements import epoch_metrics, make_result, next_epoch, progress_figures
from rampline.training.probes import measure_run
from rampline.training.progress import Progress, is_best_missing, without_best
from rampline.training.step import EXAMPLES
from rampline.training.tensorboard import ScalarWriter


class Controller:
    """Drives an engine through a run, from its last checkpoint if it has one.

    Args:
        config: the run.
        engine: runs steps and evaluations.
        run_directory: where checkpoints are read by all roles, and written by the chief.
        steps_per_epoch: updates per epoch.
        events: where the chief tells what happens; `None` on every other role.
        attempt: which start of the run this is, from 1.
        launch: when this attempt was launched, and the wall time of those before it.
        lifeline: is told of every save.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        engine: Engine,
        run_directory: RunDirectory,
        steps_per_epoch: int,
        events: EventWriter | None,
        attempt: int,
        launch: Launch,
        lifeline: Lifeline,
    ) -> None:
        self.config, self.engine, self.run_directory = config, engine, run_directory
        self.steps_per_epoch, self.events = steps_per_epoch, events
        self.attempt, self._clock, self._lifeline = attempt, RunClock(launch), lifeline
        self._statistics: np.ndarray | None = None
        self.progress = self._restore()
        self._clock.resume(self.progress)
        self._scalar_seconds, self._scalars = 0.0, ScalarWriter(run_directory.tensorboard, warn=self._warn)

    def _restore(self) -> Progress:
        state = self.engine.state
        restored = restore_newest(self.run_directory.checkpoints, state.model, state.optimizer, warn=self._warn)
        progress = restored.progress if restored else Progress()
        if is_best_missing(self.run_directory.checkpoints, progress):
            lost, progress = progress, without_best(progress)
            best = f"the best from epoch {progress.best_epoch or lost.epoch + 1} on is kept instead"
            self._warn(f"the best checkpoint (epoch {lost.best_epoch}, step {lost.best_step}) is missing: {best}")
        state.step.assign(progress.step)
        if restored and restored.replica_statistics is not None:
            self.engine.write_statistics(restored.replica_statistics)
        # All roles have read what they need before the chief tidies up.
        self.engine.check_agreement(progress.step)
        if self.events:
            drop_unfinished(self.run_directory.checkpoints)
            drop_damaged(restored.damaged if restored else ())
        return progress

    def _warn(self, message: str) -> None:
        if self.events:
            self.events.write("warning", message=message)

    def train(self) -> None:
        """Train to the last epoch, then tell the result; a run that is complete already only tells it again.

        Raises:
            Preempted: when a role was asked to stop: a checkpoint is saved, and all roles leave at the same step.
        """
        with self.stopping():
            while self.progress.epoch < self.config.epochs:
                epoch_end = (self.progress.epoch + 1) * self.steps_per_epoch
                self._train_until(min(self._next_checkpoint(), epoch_end))
                if self.progress.step == epoch_end:
                    self.end_epoch()
                else:
                    self._save(self.engine.read_statistics())
        self.engine.finish()
        wall_seconds = self._clock.wall_seconds()
        measure_run(self.config, self.engine, self.run_directory, self.events)
        self._finish(wall_seconds)

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
        for done in self.engine.run_steps(self.progress.step, step - self.progress.step):
            now = time.perf_counter()
            self.record(done, now - started)
            started = now
            if done.stop:
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
        sums = np.add(self.progress.epoch_sums, done.sums.sum(axis=0, dtype=np.float64))
        self._update(
            step=self.progress.step + len(done.sums),
            epoch_sums=tuple(float(value) for value in sums),
            epoch_seconds=self.progress.epoch_seconds + seconds,
            epoch_input_wait_seconds=None if waited is None or more is None else waited + more,
        )
        if self.events and len(done.sums):
            images = float(done.sums[:, EXAMPLES].sum())
            figures = progress_figures(
                self.progress, self.steps_per_epoch, images_per_second=images / max(seconds, 1e-9)
            )
            self.events.progress(**figures)

    def end_epoch(self) -> None:
        """Evaluate, tell the epoch's metrics, save."""
        started = time.perf_counter()
        self._statistics = self.engine.read_statistics()
        self.engine.average_moving_statistics()
        validation = self.engine.evaluate("validation")
        self._statistics = None
        metrics = epoch_metrics(self.config, self.steps_per_epoch, self.progress, validation)
        metrics |= {
            "validation_seconds": time.perf_counter() - started,
            "elapsed_seconds": self._clock.elapsed_seconds(),
        }
        self.progress = next_epoch(self.progress, metrics)
        if self.events:
            self.events.write("epoch", epoch=self.progress.epoch, metrics=metrics)
            started = time.perf_counter()
            self._scalars.write_epoch(self.progress.epoch, metrics)
            self._scalar_seconds += time.perf_counter() - started
        self._save()

    def _update(self, **changes: object) -> None:
        self.progress = dataclasses.replace(self.progress, **changes)  # type: ignore[arg-type]

    def _save(self, replica_statistics: np.ndarray | None = None) -> None:
        self._lifeline.advance("save")
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

    def _finish(self, wall_seconds: float) -> None:
        if self.events is None:
            return
        result = make_result(self.progress, wall_seconds=wall_seconds, attempts=self.attempt)
        result["logging_seconds"] = self.events.seconds + self._scalar_seconds
        write_json(self.run_directory.result_file, result)
        best = {name: result[name] for name in ("best_epoch", "best_val_accuracy")}
        self.events.write("finished", metrics={"train_seconds": result["train_seconds"]}, **best)
