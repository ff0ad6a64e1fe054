"""The learning rate as a function of the training step: the schedules by name, with what they compute and their words.

Settings are checked and described without TensorFlow, so it is imported where a rate is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

    from rampline.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A schedule; its peak is `RunConfig.peak_learning_rate`, the scaled one.

    Attributes:
        rate: the rate at an epoch, which is a float tensor of any shape, such as 2.5 in the middle of the third; same
            shape and dtype.
        words: the rate over a run, for people.
        about: its formula, for documents, in the names of the settings; the epoch is a fraction that grows every step.
        is_ramp: whether it rises from `start` and falls to `floor`.
    """

    rate: Callable[[RunConfig, tf.Tensor], tf.Tensor]
    words: Callable[[RunConfig], str]
    about: str
    is_ramp: bool = False


def describe_schedule(config: RunConfig) -> str:
    """The schedule of a run in words, with the scaled peak."""
    name = config.learning_rate.schedule
    return f"{name}: {SCHEDULES[name].words(config)}"


def _constant(config: RunConfig, epoch: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.fill(tf.shape(epoch), tf.constant(config.peak_learning_rate, epoch.dtype))


def _steps(config: RunConfig, epoch: tf.Tensor) -> tf.Tensor:
    """`peak * decay ** boundaries passed`."""
    import tensorflow as tf

    rate = config.learning_rate
    passed = tf.add_n([tf.cast(epoch >= boundary, epoch.dtype) for boundary in rate.step_epochs] or [epoch * 0])
    return config.peak_learning_rate * rate.decay**passed


def _steps_words(config: RunConfig) -> str:
    rate, peak = config.learning_rate, config.peak_learning_rate
    later = [f"{peak * rate.decay**k:g} from epoch {epoch:g}" for k, epoch in enumerate(rate.step_epochs, start=1)]
    return ", ".join([f"{peak:g}", *later])


def _ramp(config: RunConfig, epoch: tf.Tensor) -> tf.Tensor:
    """That of the Keras TPU and multi-GPU fine-tuning write-ups, continuous in the step instead of once per epoch.

    start → peak linearly over `ramp_epochs`, hold, then `(peak - floor) * decay ** epochs_since + floor`.
    """
    return _ramp_and_fall(config, epoch, lambda after: config.learning_rate.decay**after)


def _cosine(config: RunConfig, epoch: tf.Tensor) -> tf.Tensor:
    """A ramp, then one half period: Loshchilov & Hutter 2017."""
    import tensorflow as tf

    rate = config.learning_rate
    length = max(config.epochs - rate.ramp_epochs - rate.hold_epochs, 1e-9)
    return _ramp_and_fall(config, epoch, lambda after: 0.5 * (1.0 + tf.cos(math.pi * tf.minimum(after / length, 1.0))))


def _ramp_and_fall(config: RunConfig, epoch: tf.Tensor, share: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """`share` of the way from floor to peak is left at an epoch after ramp and hold."""
    import tensorflow as tf

    rate, peak = config.learning_rate, config.peak_learning_rate
    after = tf.maximum(epoch - rate.ramp_epochs - rate.hold_epochs, 0.0)
    falling = (peak - rate.floor) * share(after) + rate.floor
    rising = rate.start + (peak - rate.start) * epoch / max(rate.ramp_epochs, 1e-9)
    return tf.where(epoch < rate.ramp_epochs, rising, falling)


def _ramp_and_fall_words(config: RunConfig, fall: str) -> str:
    rate = config.learning_rate
    hold = f", held for {rate.hold_epochs:g}" if rate.hold_epochs else ""
    rise = f"{rate.start:g} to {config.peak_learning_rate:g} by epoch {rate.ramp_epochs:g}"
    return f"{rise}{hold}, {fall} down to {rate.floor:g}"


SCHEDULES = {
    "constant": Schedule(rate=_constant, words=lambda config: f"{config.peak_learning_rate:g}", about="`peak`"),
    "ramp": Schedule(
        rate=_ramp,
        words=lambda config: _ramp_and_fall_words(config, f"x {config.learning_rate.decay:g} per epoch"),
        about="linear from `start` to `peak` over `ramp_epochs`, `peak` for `hold_epochs`, then "
        "`(peak - floor) * decay ** epochs_since + floor`",
        is_ramp=True,
    ),
    "steps": Schedule(
        rate=_steps, words=_steps_words, about="`peak * decay ** k` after `k` boundaries of `step_epochs`"
    ),
    "cosine": Schedule(
        rate=_cosine,
        words=lambda config: _ramp_and_fall_words(config, "half a cosine"),
        about="ramp and hold as in `ramp`, then half a cosine down to `floor` at the last epoch",
        is_ramp=True,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What the peak is multiplied by: for a run, and in words."""

    factor: Callable[[RunConfig], float]
    about: str


# Linear scaling: Goyal et al. 2017.
SCALINGS = {
    "none": Scaling(factor=lambda config: 1.0, about="nothing"),
    "replicas": Scaling(factor=lambda config: float(config.num_replicas_in_sync), about="the replicas in sync"),
    "global_batch": Scaling(
        factor=lambda config: config.global_batch_size / config.learning_rate.base_batch_size,
        about="global batch / `base_batch_size`",
    ),
}


def learning_rate_at(config: RunConfig, steps_per_epoch: int, step: tf.Tensor) -> tf.Tensor:
    """Rate at 0-based `step` (any shape), same shape, float32 unless `keras.config.floatx()` is another."""
    import keras
    import tensorflow as tf

    epoch = tf.cast(step, keras.config.floatx()) / steps_per_epoch
    return SCHEDULES[config.learning_rate.schedule].rate(config, epoch)


def learning_rate_curve(
    rate: Callable[[tf.Tensor], tf.Tensor], epochs: int, steps_per_epoch: int, points: int = 200
) -> list[list[float]]:
    """`[[epoch, rate], …]` over the whole run, for the plot; `rate` is of 0-based steps."""
    import keras
    import numpy as np
    import tensorflow as tf

    steps = np.unique(np.linspace(0, epochs * steps_per_epoch - 1, points).astype(np.int64))
    rates = rate(tf.constant(steps, keras.config.floatx())).numpy()
    return [[float(step / steps_per_epoch), float(value)] for step, value in zip(steps, rates, strict=True)]
