"""The learning rate as a function of the training step."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.schedules import SCHEDULES


class StepLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule driven by our own step counter instead of `optimizer.iterations`.

    Under parameter servers Keras' `iterations` loses updates (a read-modify-write), so the rate would lag behind.

    Args:
        config: gives the schedule, its peak after scaling, and the number of epochs.
        steps_per_epoch: updates per epoch.
        step: the counter, a scalar int64 variable; `None` uses what the optimizer passes (`Model.fit`).
    """

    def __init__(self, config: RunConfig, steps_per_epoch: int, step: tf.Variable | None = None) -> None:
        self.config = config
        self.steps_per_epoch = steps_per_epoch
        self.step = step

    def __call__(self, iterations: tf.Tensor) -> tf.Tensor:
        """The rate of the update that is about to be made: scalar, as `learning_rate_at`."""
        step = iterations if self.step is None else self.step
        return learning_rate_at(self.config, self.steps_per_epoch, tf.cast(step, keras.config.floatx()))

    def get_config(self) -> dict:
        """Refused: a schedule is rebuilt from the `RunConfig`, never from a saved optimizer."""
        raise TypeError("StepLearningRate is rebuilt from the RunConfig, it is not serialised")


def learning_rate_at(config: RunConfig, steps_per_epoch: int, step: tf.Tensor) -> tf.Tensor:
    """Rate at 0-based `step` (any shape), same shape, float32 unless `keras.config.floatx()` is another.

    Linear scaling of the peak: Goyal et al. 2017; the formulas are in `rampline.schedules`.
    """
    epoch = tf.cast(step, keras.config.floatx()) / steps_per_epoch
    return SCHEDULES[config.learning_rate.schedule].rate(config, epoch)


def learning_rate_curve(config: RunConfig, steps_per_epoch: int, points: int = 200) -> list[list[float]]:
    """`[[epoch, rate], …]` over the whole run, for the plot."""
    steps = np.unique(np.linspace(0, config.epochs * steps_per_epoch - 1, points).astype(np.int64))
    rates = learning_rate_at(config, steps_per_epoch, tf.constant(steps, keras.config.floatx())).numpy()
    return [[float(step / steps_per_epoch), float(value)] for step, value in zip(steps, rates, strict=True)]
