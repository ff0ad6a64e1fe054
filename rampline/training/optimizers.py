"""The Keras optimizers of a run, with TensorFlow's fused kernels: one operation per variable instead of about fifteen.

The formulas are Keras' own; in float32 the kernels round beta before they subtract it from 1, which makes the decay of
Adam's second moment 0.00099999 instead of 0.001. On parameter servers an update is one remote operation that holds the
variable's lock, where Keras reads, computes and writes in turns with other workers.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from rampline.config import OptimizerConfig

Rate = float | keras.optimizers.schedules.LearningRateSchedule


class FusedAdam(keras.optimizers.Adam):
    """`keras.optimizers.Adam` (Kingma & Ba 2014, the form at the end of section 2)."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable and its two moments; a sparse gradient takes Keras' way."""
        if isinstance(gradient, tf.IndexedSlices):
            return super().update_step(gradient, variable, learning_rate)
        return _adam_step(self, gradient, variable, learning_rate)


class FusedAdamW(keras.optimizers.AdamW):
    """`keras.optimizers.AdamW`: the decay is applied before the step, by Keras."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """As `FusedAdam.update_step`."""
        if isinstance(gradient, tf.IndexedSlices):
            return super().update_step(gradient, variable, learning_rate)
        return _adam_step(self, gradient, variable, learning_rate)


def _adam_step(optimizer: keras.optimizers.Adam, gradient: tf.Tensor, variable: tf.Variable, rate: tf.Tensor) -> None:
    index, dtype = optimizer._get_variable_index(variable), variable.dtype
    # Where the variable is: brought from elsewhere, each of these numbers is a remote call of its own.
    with tf.device(variable.device):
        update = tf.cast(optimizer.iterations + 1, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=optimizer._momentums[index].value.handle,
            v=optimizer._velocities[index].value.handle,
            beta1_power=tf.pow(tf.constant(optimizer.beta_1, dtype), update),
            beta2_power=tf.pow(tf.constant(optimizer.beta_2, dtype), update),
            lr=tf.cast(rate, dtype),
            beta1=optimizer.beta_1,
            beta2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            grad=tf.cast(gradient, dtype),
            use_locking=True,
        )


class FusedSGD(keras.optimizers.SGD):
    """`keras.optimizers.SGD` with momentum (Polyak) as one `ResourceApplyKerasMomentum`."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Update one variable and its momentum; sparse gradients, and no momentum, take Keras' way."""
        if isinstance(gradient, tf.IndexedSlices) or not self.momentum:
            return super().update_step(gradient, variable, learning_rate)
        dtype = variable.dtype
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=self.momentums[self._get_variable_index(variable)].value.handle,
            lr=tf.cast(learning_rate, dtype),
            grad=tf.cast(gradient, dtype),
            momentum=tf.constant(self.momentum, dtype),
            use_locking=True,
            use_nesterov=self.nesterov,
        )


def make_optimizer(config: OptimizerConfig, learning_rate: Rate) -> keras.optimizers.Optimizer:
    """The optimizer of that name, with the variables that Keras' own has."""
    decay = config.weight_decay or None
    if config.name == "sgd":
        return FusedSGD(learning_rate, momentum=config.momentum, weight_decay=decay, name="sgd")
    if config.name == "rmsprop":
        return keras.optimizers.RMSprop(learning_rate, momentum=config.momentum, weight_decay=decay)
    if config.name == "adamw":
        return FusedAdamW(learning_rate, weight_decay=config.weight_decay, name="adamw")
    return FusedAdam(learning_rate, weight_decay=decay, name="adam")


def make_iterations_atomic(optimizer: keras.optimizers.Optimizer) -> None:
    """Let `optimizer.iterations` count every update, also when workers update at once.

    Keras 3.15 writes `assign(self + value)`: two parameter-server workers read the same count and one update is lost,
    which skews Adam's bias correction. Can go once `KerasVariable.assign_add` adds in place; a test tells when.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for counter in {id(o._iterations): o._iterations for o in (optimizer, inner)}.values():
        counter.assign_add = counter.value.assign_add
