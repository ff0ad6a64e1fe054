"""Our training loop for `parameter_server`: the chief schedules steps by number, any worker carries them out.

A worker computes the examples of a step from the step's number, so each example is used once per epoch whichever worker
runs the step, and a step that is repeated after a lost worker sees the same examples.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.compiled import as_written, compiled, repeat
from rampline.data.dataset import PreparedDataset
from rampline.pipeline.augment import load_augmentations, seed_generators
from rampline.pipeline.batches import make_step_batch, make_steps_dataset
from rampline.pipeline.examples import open_examples
from rampline.pipeline.order import EpochOrder, evaluation_rows, evaluation_steps, order_of
from rampline.training.engine import CALLS_PER_WORKER, TRAIN, CallPacer, StepCallback, StepsDone, StopRequested
from rampline.training.objective import Batch
from rampline.training.optimizers import LossScaleOptimizer
from rampline.training.random_draws import seed_of_step
from rampline.training.state import TrainingState
from rampline.training.step import accumulate, loss_and_sums, make_evaluation_step
from rampline.training.timings import CACHED, PIPELINE, REAL

# One vector is copied and sent as a whole: several let the copying of one and the sending of another overlap.
_PACK_BYTES = 32 * 2**20


class PackedVariables:
    """Variables in groups that share a parameter server and a dtype, each group of about 32 MiB at most."""

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


def make_remote_train_step(state: TrainingState, micro_batch: int | None = None) -> Callable[[Batch], tf.Tensor]:
    """As `make_train_step` for one replica, of a batch that says which `step` it is of."""
    model, optimizer = state.model, state.optimizer
    has_scale = isinstance(optimizer, LossScaleOptimizer)
    trained, others = PackedVariables(model.trainable_variables), PackedVariables(model.non_trainable_variables)
    seeds = {id(generator.state) for generator in seed_generators(model)}
    is_seed = [id(variable) in seeds for variable in model.non_trainable_variables]

    def loss_gradients(
        batch: Batch, packs: list[tf.Tensor], other_packs: list[tf.Tensor], scale: dict[str, tf.Tensor]
    ) -> tuple[list[tf.Tensor], dict[int, tf.Tensor], tf.Tensor]:
        changing = set[int]()

        def gradients_of(part: Batch, before: list) -> tuple[list, tf.Tensor, list]:
            with tf.GradientTape() as tape:
                tape.watch(packs)
                with _values(model, trained.unpack(packs), before) as scope:
                    loss, sums = loss_and_sums(state, part)
                scaled = optimizer.scale_loss(loss, **scale)
            after = [scope.get_current_value(variable) for variable in model.non_trainable_variables]
            changing.update(i for i, (old, new) in enumerate(zip(before, after, strict=True)) if new is not old)
            return tape.gradient(scaled, packs), sums, after

        values = zip(others.unpack(other_packs), is_seed, strict=True)
        before = [seed_of_step(value, batch["step"]) if seed else value for value, seed in values]
        gradients, sums, after = accumulate(
            gradients_of, batch, micro_batch, packs, before, width=state.objective.width
        )
        return gradients, {i: after[i] for i in sorted(changing) if not is_seed[i]}, sums

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


def make_remote_evaluation_step(state: TrainingState) -> Callable[[Batch], tf.Tensor]:
    """As `rampline.training.step.make_evaluation_step`."""
    model = state.model
    trained, others = PackedVariables(model.trainable_variables), PackedVariables(model.non_trainable_variables)
    step = make_evaluation_step(state)

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


# Between two looks whether a call of a lost worker is done.
REPEAT_SECONDS = 0.05


class ParameterServerEngine:
    """Runs on the chief. Variables live on the parameter servers; updates are asynchronous.

    Args:
        dataset: its directory must be readable by every worker under the same path.
        state: made in the strategy's scope.
        callback: is told of every result, and asked whether to stop.
        measure_staleness: count the updates that each step missed; costs a reading of the counter per step.
    """

    def __init__(
        self,
        *,
        config: RunConfig,
        dataset: PreparedDataset,
        strategy: tf.distribute.ParameterServerStrategy,
        state: TrainingState,
        callback: StepCallback | None = None,
        measure_staleness: bool = False,
    ) -> None:
        self.state = state
        self._config, self._dataset, self._strategy = config, dataset, strategy
        self._callback, self._measure_staleness = callback or StepCallback(), measure_staleness
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._order = order_of(config, dataset)
        self._pacer = CallPacer(config.steps_per_call, compiling=CALLS_PER_WORKER * config.cluster.workers)
        self._images: dict[str, Iterator] = {}
        self._remote_train_step = make_remote_train_step(state, config.micro_batch_size)
        # Batches are made inside a graph, where no layer can be.
        load_augmentations(config.data.augmentations)
        self._train_steps = self._make_train(REAL, self._order)
        self._evaluation_steps: dict[str, tf.types.experimental.GenericFunction] = {}

    def run_steps(
        self, first_step: int, steps: int, is_enough: Callable[[], bool] = lambda: False
    ) -> Iterator[StepsDone]:
        """Calls are scheduled some ahead of the workers, and told of in order."""
        return self._schedule(self._train_steps, self._worker_images("train"), first_step, steps, TRAIN, is_enough)

    def _schedule(
        self,
        train_steps: tf.types.experimental.GenericFunction,
        source: Iterator,
        first_step: int,
        steps: int,
        kind: str,
        is_enough: Callable[[], bool] = lambda: False,
    ) -> Iterator[StepsDone]:
        workers = self._config.cluster.workers
        ahead = CALLS_PER_WORKER * workers
        next_step, end = first_step, first_step + steps
        calls: deque = deque()
        while next_step < end or calls:
            stop = self._callback.should_stop() or is_enough()
            while not stop and next_step < end and len(calls) < ahead:
                # Shorter towards the end, so that no worker waits long for the last call of another.
                count = self._pacer.longest(kind, max(1, (end - next_step) // (2 * workers)))
                arguments = (source, tf.constant(next_step, tf.int64), tf.constant(count, tf.int64))
                calls.append((time.monotonic(), self._coordinator.schedule(train_steps, args=arguments)))
                next_step += count
            if not calls:
                yield StepsDone(sums=np.zeros((0, self.state.objective.width)), input_wait_seconds=0.0, stop=True)
                return
            self._callback.advance(kind)
            scheduled_at, call = calls.popleft()
            sums, wait, staleness, seconds = (np.asarray(part) for part in self._fetch(call))
            # Inside a graph there is but the clock of the wall, which may be set: no call takes longer than its answer.
            seconds = min(max(float(seconds), 0.0), time.monotonic() - scheduled_at)
            self._pacer.note(len(sums), seconds)
            measured = staleness if self._measure_staleness else None
            is_last = stop and not calls
            waited = min(max(float(wait), 0.0), seconds) / workers
            yield StepsDone(sums=sums, input_wait_seconds=waited, stop=is_last, staleness=measured)
            if is_last:
                return
        self._coordinator.join()

    def _fetch(self, call: tf.distribute.coordinator.RemoteValue) -> Any:
        """The results of a call, also where the worker that has them is lost before they are here.

        The coordinator then gives the call to another worker. But it copies results in a thread of its own, and who
        waits for them meanwhile tries the copy that has failed once more (`RemoteValueImpl.get`), and gets the error.
        The design foresaw it and left it to the user: https://github.com/tensorflow/community/pull/214.
        """
        while True:
            try:
                return call.fetch()
            except tf.errors.OpError:
                # Raises what no other worker would do better, such as a lost parameter server.
                if self._coordinator.done():
                    return call.fetch()
                time.sleep(REPEAT_SECONDS)

    def evaluate(self, split: str) -> np.ndarray:
        """The steps are spread over the workers."""
        steps = evaluation_steps(replicas=1, batch_size=self._config.rows_at_once, examples=self._dataset.splits[split])
        images, step = self._worker_images(split), self._evaluation_step(split)
        calls = [self._coordinator.schedule(step, args=(images, tf.constant(i, tf.int64))) for i in range(steps)]
        total = np.zeros(self.state.objective.width)
        for call in calls:
            if self._callback.should_stop():
                raise StopRequested
            self._callback.advance("evaluate")
            total += self._fetch(call)
        return total

    def average_moving_statistics(self) -> None:
        """Nothing to do: the parameter servers hold one copy, which all workers update."""

    def read_statistics(self) -> None:
        """None: there is one copy."""

    def write_statistics(self, statistics: np.ndarray | None) -> None:
        """Nothing to do: the model has the one copy."""

    def average(self, value: float) -> float:
        """The chief alone asks."""
        return value

    def make_probe(self, kind: str, batch_size: int | None = None) -> Callable[[int], float]:
        order = self._order.in_whole_batches(batch_size)
        is_own = kind == REAL and order == self._order
        train_steps = self._train_steps if is_own else self._make_train(kind, order)
        source = self._worker_batch(order) if kind == CACHED else self._worker_images("train")

        def measure(steps: int) -> float:
            started = time.perf_counter()
            for done in self._schedule(train_steps, source, 0, steps, kind):
                if done.stop:
                    raise StopRequested
            return (time.perf_counter() - started) / steps

        return measure

    def finish(self) -> None:
        """Wait for everything that was scheduled."""
        self._coordinator.join()

    def _worker_images(self, split: str) -> Iterator:
        """A per-worker source of the split's images, read by the worker itself and kept in its memory."""
        if split not in self._images:
            dataset = self._dataset

            @as_written
            def make() -> tf.data.Dataset:
                once = tf.data.Dataset.range(1).map(lambda _: open_examples(dataset, split).images)
                return once.cache().repeat()

            self._images[split] = iter(self._coordinator.create_per_worker_dataset(make))
        return self._images[split]

    def _worker_batch(self, order: EpochOrder) -> Iterator:
        """A per-worker source of the first step's batch, made once and kept in its memory."""
        dataset, data = self._dataset, self._config.data

        @as_written
        def make() -> tf.data.Dataset:
            examples, first = open_examples(dataset, "train"), tf.data.Dataset.range(1)
            return first.map(lambda step: make_step_batch(examples, order=order, data=data, step=step)).cache().repeat()

        return iter(self._coordinator.create_per_worker_dataset(make))

    def _evaluation_step(self, split: str) -> tf.types.experimental.GenericFunction:
        if split not in self._evaluation_steps:
            self._evaluation_steps[split] = self._make_evaluate(split)
        return self._evaluation_steps[split]

    def _make_train(self, kind: str, order: EpochOrder) -> tf.types.experimental.GenericFunction:
        """`(source, first_step, steps)` to `(sums, wait, staleness, seconds)`.

        The first and third have a row per step; `wait` is the part of the `seconds` in which the batch was waited for.

        Args:
            kind: `real`; or a probe, `cached` (the source gives the batch) or `pipeline` (nothing is trained).
        """
        run = self._skip_step if kind == PIPELINE else self._train_step

        def repeated(source: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            batch = next(source)
            return self._in_loop(steps, run, lambda _: batch)

        def in_memory(source: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            examples, data = open_examples(self._dataset, "train", next(source)), self._config.data

            def make(i: tf.Tensor) -> Batch:
                return make_step_batch(examples, order=order, data=data, step=first_step + i)

            return self._in_loop(steps, run, make)

        def streamed(source: Iterator, first_step: tf.Tensor, steps: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return self._over_dataset(next(source), order, first_step, steps, run)

        if kind == CACHED:
            return compiled(repeated)
        # Making a dataset iterator costs tens of milliseconds on a remote worker, far more than gathering a batch from
        # memory; where images are read and decoded, its parallelism is worth that.
        return compiled(in_memory if self._dataset.storage == "tensor" else streamed)

    def _make_evaluate(self, split: str) -> tf.types.experimental.GenericFunction:
        """`(images, step)` to (width,) sums over the examples of one evaluation step."""
        evaluation_step = make_remote_evaluation_step(self.state)
        size = {"examples": self._dataset.splits[split], "batch_size": self._config.rows_at_once}

        def evaluate(images: Iterator, step: tf.Tensor) -> tf.Tensor:
            rows, weights = evaluation_rows(step, tf.constant(0), replicas=1, **size)
            pixels, labels = open_examples(self._dataset, split, next(images)).take(rows)
            batch = {"images": pixels, "labels": labels, "weights": weights}
            return self._strategy.run(evaluation_step, (batch,))

        return compiled(evaluate)

    def _train_step(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        counter = self.state.step
        if not self._measure_staleness:
            sums = self._strategy.run(self._remote_train_step, (batch,))
            with tf.device(counter.device):
                counter.assign_add(1)
            return sums, tf.constant(0, tf.int64)
        # What depends on a function's call waits for all that it does, the update included.
        train = compiled(lambda: self._strategy.run(self._remote_train_step, (batch,)))
        before = counter.read_value()
        with tf.control_dependencies([before]):
            sums = train()
        with tf.control_dependencies([sums]):
            counter.assign_add(1)
            return sums, counter.read_value() - before - 1

    def _skip_step(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies(tf.nest.flatten(batch)):
            return tf.zeros((self.state.objective.width,), keras.config.floatx()), tf.constant(0, tf.int64)

    def _arrays(self, steps: tf.Tensor) -> tuple[tf.TensorArray, tf.TensorArray]:
        size = tf.cast(steps, tf.int32)
        floats = tf.TensorArray(keras.config.floatx(), size=size, element_shape=(self.state.objective.width,))
        return floats, tf.TensorArray(tf.int64, size=size, element_shape=())

    def _over_dataset(
        self, images: tf.Tensor, order: EpochOrder, first: tf.Tensor, steps: tf.Tensor, run
    ) -> tuple[tf.Tensor, ...]:
        examples, data = open_examples(self._dataset, "train", images), self._config.data
        batches = make_steps_dataset(examples, order=order, data=data, first_step=first, steps=steps)
        started = tf.timestamp()
        first_state = (tf.constant(0, tf.int64), *self._arrays(steps), tf.constant(0.0, tf.float64), started)
        _, *state = batches.reduce(first_state, lambda state, batch: (state[0] + 1, *self._once(run, batch, *state)))
        return self._with_seconds(started, *state)

    def _in_loop(self, steps: tf.Tensor, run, make) -> tuple[tf.Tensor, ...]:
        started = tf.timestamp()
        # No step waits for the end of another: it reads its variables while others are still updated, and batches are
        # made some steps ahead. What is waited for is the rest of that, after the step before.
        first_state = (*self._arrays(steps), tf.constant(0.0, tf.float64), started)
        return self._with_seconds(started, *repeat(steps, lambda i, *s: self._once(run, make(i), i, *s), *first_state))

    def _once(
        self,
        run,
        batch: Batch,
        i: tf.Tensor,
        sums: tf.TensorArray,
        staleness: tf.TensorArray,
        wait: tf.Tensor,
        before: tf.Tensor,
    ) -> tuple[tf.TensorArray, tf.TensorArray, tf.Tensor, tf.Tensor]:
        """Step `i`; `before` is when the one before it had ended."""
        with tf.control_dependencies([before, *tf.nest.flatten(batch)]):
            wait += tf.timestamp() - before
        done, missed = run(batch)
        row = tf.cast(i, tf.int32)
        with tf.control_dependencies([done, missed]):
            return sums.write(row, done), staleness.write(row, missed), wait, tf.timestamp()

    def _with_seconds(
        self, started: tf.Tensor, sums: tf.TensorArray, staleness: tf.TensorArray, wait: tf.Tensor, _: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        """The figures of `make_train`: the seconds are those until all others were there."""
        figures = sums.stack(), wait, staleness.stack()
        with tf.control_dependencies(figures):
            return *figures, tf.timestamp() - started
