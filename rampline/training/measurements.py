"""The figures of a training, from the sums that its progress holds: inside an epoch, at its end, at the run's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.events import finite
from rampline.learning_rate import learning_rate_at
from rampline.training.progress import Progress
from rampline.training.step import CORRECT, EXAMPLES, LOSS_SUM, PENALTY_SUM, SUMS


def progress_figures(progress: Progress, steps_per_epoch: int, *, images_per_second: float) -> dict[str, Any]:
    """What is told inside an epoch: where it is, 1-based, and the means since it began."""
    sums = progress.epoch_sums
    return {
        "epoch": progress.epoch + 1,
        "step": (progress.step - 1) % steps_per_epoch + 1,
        "steps_per_epoch": steps_per_epoch,
        "loss": sums[LOSS_SUM] / sums[EXAMPLES],
        "accuracy": sums[CORRECT] / sums[EXAMPLES],
        "images_per_second": images_per_second,
    }


def epoch_metrics(
    config: RunConfig, steps_per_epoch: int, progress: Progress, validation: np.ndarray
) -> dict[str, float | None]:
    """Metrics of the epoch whose last step `progress` has made; `None` for one that is not finite.

    Args:
        config: the run.
        steps_per_epoch: updates per epoch.
        progress: with the sums and times of the epoch.
        validation: (4,) sums over the validation split.
    """
    train, seconds, waited = progress.epoch_sums, progress.epoch_seconds, progress.epoch_input_wait_seconds
    last_step = tf.constant(progress.step - 1)
    metrics: dict[str, float | None] = {
        "train_loss": train[LOSS_SUM] / train[EXAMPLES],
        "train_accuracy": train[CORRECT] / train[EXAMPLES],
        "val_loss": float(validation[LOSS_SUM] / validation[EXAMPLES]),
        "val_accuracy": float(validation[CORRECT] / validation[EXAMPLES]),
        "learning_rate": float(learning_rate_at(config, steps_per_epoch, last_step)),
        "epoch_seconds": seconds,
        "images_per_second": train[EXAMPLES] / seconds,
    }
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
    return dataclasses.replace(
        progress,
        epoch=epoch,
        epoch_sums=(0.0,) * SUMS,
        epoch_seconds=0.0,
        epoch_input_wait_seconds=0.0,
        train_seconds=progress.train_seconds + progress.epoch_seconds,
        metrics=metrics,
    )


def make_result(progress: Progress, *, wall_seconds: float, attempts: int) -> dict[str, Any]:
    """The content of `result.json`."""
    return {
        "status": "complete",
        "epochs": progress.epoch,
        "steps": progress.step,
        "best_epoch": progress.best_epoch,
        "best_val_accuracy": progress.best_val_accuracy,
        "train_seconds": progress.train_seconds,
        "wall_seconds": wall_seconds,
        "attempts": attempts,
        "metrics": progress.metrics,
    }
