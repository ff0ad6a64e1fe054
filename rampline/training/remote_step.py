"""The work of a parameter-server worker, with the variables brought over in a few long vectors.

A call of the model reads each variable by itself, some of them twice, and each reading is a remote call of a fifth of a
millisecond of processor time, as is each gradient on its way back: for a small network more than a third of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import keras
import numpy as np
import tensorflow as tf

from rampline.compiled import compiled
from rampline.training.optimizers import LossScaleOptimizer
from rampline.training.random_draws import seed_generators, seed_of_step
from rampline.training.state import TrainingState
from rampline.training.step import Batch, loss_and_sums, make_evaluation_step

# One vector is copied and sent as a whole: several let the copying of one and the sending of another overlap.
_PACK_BYTES = 32 * 2**20


class PackedVariables:
    """Variables in groups that share a parameter server and a dtype, each group of about 32 MiB at most.

    Args:
        variables: of a model made in the scope of `ParameterServerStrategy`.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        self._variables = variables
        self._groups: list[list[int]] = []
        open_groups: dict[tuple[str, str], tuple[list[int], int]] = {}
        for index, variable in enumerate(variables):
            key = (variable.value.device, variable.value.dtype.name)
            size = int(np.prod(variable.shape)) * variable.value.dtype.size
            group, filled = open_groups.get(key, ([], 0))
            if not group or filled + size > _PACK_BYTES:
                group, filled = [], 0
                self._groups.append(group)
            group.append(index)
            open_groups[key] = (group, filled + size)

    def read(self) -> list[tf.Tensor]:
        """The values, one vector per group, put together where the variables are."""
        return self._pack([variable.value for variable in self._variables], at_home=True)

    def unpack(self, packs: Sequence[tf.Tensor], *, at_home: bool = False) -> list[tf.Tensor]:
        """The values in the order of the variables; `at_home` on the devices of the variables."""
        values: dict[int, tf.Tensor] = {}
        for group, pack in zip(self._groups, packs, strict=True):
            shapes = [self._variables[index].shape for index in group]
            with self._device(group, at_home):
                parts = tf.split(pack, [int(np.prod(shape)) for shape in shapes])
                values |= {i: tf.reshape(part, shape) for i, part, shape in zip(group, parts, shapes, strict=True)}
        return [values[index] for index in range(len(self._variables))]

    def assign(self, values: Sequence[tf.Tensor]) -> None:
        """Give each variable its value, sent in one vector per group."""
        values = self.unpack(self._pack(values, at_home=False), at_home=True)
        for variable, value in zip(self._variables, values, strict=True):
            variable.value.assign(value)

    def _pack(self, values: Sequence[tf.Tensor | tf.Variable], *, at_home: bool) -> list[tf.Tensor]:
        packs = []
        for group in self._groups:
            with self._device(group, at_home):
                packs.append(tf.concat([tf.reshape(values[index], (-1,)) for index in group], axis=0))
        return packs

    def _device(self, group: Sequence[int], at_home: bool):
        return tf.device(self._variables[group[0]].value.device) if at_home else nullcontext()


def make_remote_train_step(state: TrainingState) -> Callable[[Batch], tf.Tensor]:
    """As `make_train_step` for one replica, of a batch that says which `step` it is of."""
    model, optimizer = state.model, state.optimizer
    has_scale = isinstance(optimizer, LossScaleOptimizer)
    trained, others = PackedVariables(model.trainable_variables), PackedVariables(model.non_trainable_variables)
    seeds = {id(generator.state) for generator in seed_generators(model)}
    is_seed = [id(variable) in seeds for variable in model.non_trainable_variables]

    def loss_gradients(
        batch: Batch, packs: list[tf.Tensor], other_packs: list[tf.Tensor], scale: dict[str, tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[int, tf.Tensor], tf.Tensor]:
        values = zip(others.unpack(other_packs), is_seed, strict=True)
        before = [seed_of_step(value, batch["step"]) if seed else value for value, seed in values]
        with tf.GradientTape() as tape:
            tape.watch(packs)
            with _values(model, trained.unpack(packs), before) as scope:
                loss, sums = loss_and_sums(model, batch, 1)
            scaled = optimizer.scale_loss(loss, **scale)
        after = [scope.get_current_value(variable) for variable in model.non_trainable_variables]
        pairs = enumerate(zip(before, after, strict=True))
        changed = {i: new for i, (old, new) in pairs if new is not old and not is_seed[i]}
        return tape.gradient(scaled, packs), changed, sums

    gradients = compiled(loss_gradients, reduce_retracing=True)

    def train_step(batch: Batch) -> tf.Tensor:
        # Read once: another worker may change it before the update.
        scale = {"scale": optimizer.dynamic_scale.value.read_value()} if has_scale else {}
        packed, changed, sums = gradients(batch, trained.read(), others.read(), scale)
        # The learning rate, too, is worked out where the updates are counted.
        with tf.device(optimizer.iterations.value.device):
            optimizer.apply(trained.unpack(packed, at_home=True), model.trainable_variables, **scale)
        if changed:
            PackedVariables([model.non_trainable_variables[i] for i in changed]).assign(list(changed.values()))
        return sums

    return train_step


def make_remote_evaluation_step(model: keras.Model) -> Callable[[Batch], tf.Tensor]:
    """As `rampline.training.step.make_evaluation_step`."""
    trained, others = PackedVariables(model.trainable_variables), PackedVariables(model.non_trainable_variables)
    step = make_evaluation_step(model)

    def evaluation_step(batch: Batch) -> tf.Tensor:
        with _values(model, trained.unpack(trained.read()), others.unpack(others.read())):
            return step(batch)

    return evaluation_step


def _values(model: keras.Model, trained: list[tf.Tensor], others: list[tf.Tensor]) -> keras.StatelessScope:
    """A scope in which the model has these values instead of those of its variables."""
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    return keras.StatelessScope(
        state_mapping=list(zip(variables, [*trained, *others], strict=True)), collect_losses=True
    )
