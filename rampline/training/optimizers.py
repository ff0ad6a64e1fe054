"""The Keras optimizers of a run, with TensorFlow's fused kernels: one operation per variable instead of about fifteen.

The formulas are Keras' own; in float32 the kernels round beta before they subtract it from 1, which makes the decay of
Adam's second moment 0.00099999 instead of 0.001. On parameter servers an update is one remote operation that holds the
variable's lock, where Keras reads, computes and writes in turns with other workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from rampline.config import OptimizerConfig
from rampline.config.choices import OPTIMIZERS
from rampline.data.compiled import compiled

# Of 0-based steps, a float tensor of any shape: the rates, same shape.
LearningRate = Callable[[tf.Tensor], tf.Tensor]
Rate = float | keras.optimizers.schedules.LearningRateSchedule


def fuse_update(optimizer: keras.optimizers.Optimizer) -> None:
    """Let an optimizer update each variable by one operation, where TensorFlow has one; else it stays Keras' own.

    A sparse gradient takes Keras' way.
    """
    kernel = _KERNELS.get(type(optimizer))
    if kernel and not getattr(optimizer, "amsgrad", False):
        optimizer.update_step = partial(kernel, optimizer)


def _update_adam(
    optimizer: keras.optimizers.Adam, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
) -> None:
    """Kingma & Ba 2014, the form at the end of section 2; AdamW's decay is applied before, by Keras."""
    if isinstance(gradient, tf.IndexedSlices):
        return type(optimizer).update_step(optimizer, gradient, variable, learning_rate)
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
            lr=tf.cast(learning_rate, dtype),
            beta1=optimizer.beta_1,
            beta2=optimizer.beta_2,
            epsilon=optimizer.epsilon,
            grad=tf.cast(gradient, dtype),
            use_locking=True,
        )


def _update_sgd(
    optimizer: keras.optimizers.SGD, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
) -> None:
    """With momentum (Polyak); without, Keras has one operation too."""
    if isinstance(gradient, tf.IndexedSlices) or not optimizer.momentum:
        return type(optimizer).update_step(optimizer, gradient, variable, learning_rate)
    dtype = variable.dtype
    tf.raw_ops.ResourceApplyKerasMomentum(
        var=variable.handle,
        accum=optimizer.momentums[optimizer._get_variable_index(variable)].value.handle,
        lr=tf.cast(learning_rate, dtype),
        grad=tf.cast(gradient, dtype),
        momentum=tf.constant(optimizer.momentum, dtype),
        use_locking=True,
        use_nesterov=optimizer.nesterov,
    )


# By the class itself: a subclass may compute something else.
_KERNELS = {
    keras.optimizers.Adam: _update_adam,
    keras.optimizers.AdamW: _update_adam,
    keras.optimizers.SGD: _update_sgd,
}


class StepLearningRate(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule driven by our own step counter instead of `optimizer.iterations`.

    Keras' `iterations` does not count the steps that are skipped in mixed_float16, and under parameter servers it loses
    updates (a read-modify-write), so the rate would lag behind.

    Args:
        rate: of 0-based steps, of any shape.
        step: the counter, a scalar int64 variable.
    """

    def __init__(self, rate: LearningRate, step: tf.Variable) -> None:
        self.rate = rate
        self.step = step

    def __call__(self, iterations: tf.Tensor) -> tf.Tensor:
        """The rate of the update that is about to be made: scalar."""
        return self.rate(tf.cast(self.step, keras.config.floatx()))

    def get_config(self) -> dict:
        """Refused: a schedule is rebuilt from the run, never from a saved optimizer."""
        raise TypeError("StepLearningRate is rebuilt from the run, it is not serialised")


def make_optimizer(config: OptimizerConfig, learning_rate: Rate) -> keras.optimizers.Optimizer:
    """The optimizer of that name, with the variables that Keras' own has."""
    optimizer = OPTIMIZERS[config.name].load()(config, learning_rate)
    optimizer.clipnorm = config.clipnorm
    if config.ema is not None:
        optimizer.use_ema, optimizer.ema_momentum = True, config.ema
    return optimizer


def make_adam(config: OptimizerConfig, learning_rate: Rate) -> keras.optimizers.Optimizer:
    return keras.optimizers.Adam(learning_rate, weight_decay=config.weight_decay or None, name="adam")


def make_adamw(config: OptimizerConfig, learning_rate: Rate) -> keras.optimizers.Optimizer:
    return keras.optimizers.AdamW(learning_rate, weight_decay=config.weight_decay, name="adamw")


def make_sgd(config: OptimizerConfig, learning_rate: Rate) -> keras.optimizers.Optimizer:
    decay = config.weight_decay or None
    return keras.optimizers.SGD(learning_rate, momentum=config.momentum, weight_decay=decay, name="sgd")


def make_rmsprop(config: OptimizerConfig, learning_rate: Rate) -> keras.optimizers.Optimizer:
    decay = config.weight_decay or None
    return keras.optimizers.RMSprop(learning_rate, momentum=config.momentum, weight_decay=decay)


def clip_the_sum(optimizer: keras.optimizers.Optimizer) -> None:
    """Let an optimizer clip the sum of the replicas' gradients.

    Keras clips the gradients of each replica and sums them then: with N replicas it would train something else than
    with one. To be called after all else that decides how gradients are summed.
    """
    if not any((optimizer.clipnorm, optimizer.clipvalue, optimizer.global_clipnorm)):
        return
    sum_gradients, clip = optimizer._all_reduce_sum_gradients, optimizer._clip_gradients

    def sum_and_clip(gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        return clip([summed for summed, _ in sum_gradients(zip(gradients, gradients, strict=True))])

    optimizer._clip_gradients, optimizer._all_reduce_sum_gradients = sum_and_clip, list
    optimizer._clip_by_norm = partial(_clip_by_norm, optimizer._clip_by_norm, optimizer.clipnorm)


def _clip_by_norm(
    keras_clip: Callable[..., tf.Tensor], norm: float, gradient: tf.Tensor, axes: Any = None
) -> tf.Tensor:
    """As `tf.clip_by_norm`, with half of its operations, each of which a small network feels."""
    if isinstance(gradient, tf.IndexedSlices) or axes is not None:
        return keras_clip(gradient, axes)
    return gradient * (norm / tf.sqrt(tf.maximum(2.0 * tf.nn.l2_loss(gradient), norm * norm)))


class LossScaleOptimizer(keras.mixed_precision.LossScaleOptimizer):
    """Keras' dynamic loss scale for float16, with one verdict of all replicas on every step.

    Keras looks for inf and nan in the gradients of the first replica of each process, before they are summed: what
    overflows in another replica goes into the weights, and workers that decide differently wait for ever.
    Here the gradients are summed first. All replicas then have the same ones, and nothing more need be exchanged.
    """

    def __init__(self, inner_optimizer: keras.optimizers.Optimizer, **settings: Any) -> None:
        super().__init__(inner_optimizer, **settings)
        # What it gets is the sum already.
        inner_optimizer._all_reduce_sum_gradients = list

    def scale_loss(self, loss: tf.Tensor, *, scale: tf.Tensor | None = None) -> tf.Tensor:
        """The loss times the scale: the present one, or `scale`, which `apply` then gets too."""
        return super().scale_loss(loss) if scale is None else loss * scale

    def apply(
        self,
        grads: Sequence[tf.Tensor | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
        *,
        scale: tf.Tensor | None = None,
    ) -> None:
        """Update the variables, or skip the step and halve the scale; called by every replica.

        Args:
            grads: of one replica's scaled loss.
            trainable_variables: theirs.
            scale: what the loss was multiplied by, where other workers may have changed the scale since.
        """
        scale = self.dynamic_scale.value.read_value() if scale is None else scale
        variables = list(trainable_variables or self._trainable_variables)
        summed = self._all_reduce_sum_gradients(zip(grads, variables, strict=True))
        unscaled = [None if gradient is None else gradient / scale for gradient, _ in summed]
        context = tf.distribute.get_replica_context()
        context.merge_call(self._update_or_skip, args=(unscaled, variables, scale))

    def _update_or_skip(self, strategy: tf.distribute.Strategy, gradients, variables, scales) -> None:
        """In the cross-replica context: a branch of a replica may not exchange anything with others."""
        for_each_replica, local = strategy.extended.call_for_each_replica, strategy.experimental_local_results
        finite = local(for_each_replica(self.check_finite, args=(gradients,)))[0]

        def update() -> None:
            for_each_replica(self.inner_optimizer.apply, args=(gradients, variables))
            # Beyond it, where two parameter-server workers count at once.
            grows = self.step_counter.value + 1 >= self.dynamic_growth_steps
            tf.cond(grows, double, count)

        def count() -> None:
            self.step_counter.assign_add(1)

        def double() -> None:
            self.step_counter.assign(0)
            self.dynamic_scale.assign(self.dynamic_scale * 2.0)

        def skip() -> None:
            self.step_counter.assign(0)
            # Another worker may have found the same scale too large already.
            self.dynamic_scale.assign(tf.minimum(self.dynamic_scale.value, local(scales)[0] / 2.0))

        tf.cond(finite, update, skip)


def averages_of(optimizer: keras.optimizers.Optimizer) -> list[tuple[keras.Variable, keras.Variable]]:
    """Each weight with its moving average; nothing where the optimizer keeps none."""
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    if not inner.use_ema:
        return []
    pairs = zip(inner._trainable_variables, inner._model_variables_moving_average, strict=True)
    return [(weight, average) for weight, average in pairs if average is not None]


def make_swap(optimizer: keras.optimizers.Optimizer, strategy: tf.distribute.Strategy) -> Callable[[], None]:
    """A function that puts weights and their averages in each other's place, bit by bit.

    Keras' `SwapEMAWeights` adds and subtracts them: the weights would come back rounded.
    """
    pairs = averages_of(optimizer)
    if not pairs:
        return lambda: None

    def exchange(weight: tf.Variable, average: tf.Variable) -> None:
        before = tf.identity(weight)
        weight.assign(average)
        average.assign(before)

    def swap() -> None:
        for weight, average in pairs:
            strategy.extended.update(weight.value, exchange, args=(average.value,), group=False)

    swap_all = compiled(swap)

    def swap_in_scope() -> None:
        with strategy.scope():
            swap_all()

    return swap_in_scope


def make_iterations_atomic(optimizer: keras.optimizers.Optimizer) -> None:
    """Let `optimizer.iterations` count every update, also when workers update at once.

    Keras 3.15 writes `assign(self + value)`: two parameter-server workers read the same count and one update is lost,
    which skews Adam's bias correction. Can go once `KerasVariable.assign_add` adds in place; a test tells when.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    for counter in {id(o._iterations): o._iterations for o in (optimizer, inner)}.values():
        counter.assign_add = counter.value.assign_add
