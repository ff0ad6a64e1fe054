"""What a role of a test does in place of a training, and the process that it is done in.

A run of one role is in the test's own process, which has four virtual devices (`tests/conftest.py`). Each role of
several is a fork of a process that has imported TensorFlow: `multiprocessing` has such a server.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from checkpoints import load_checkpoint

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.jobs.roles import local_tasks
from rampline.jobs.tf_config import ALONE, Task
from rampline.record.checkpoints import Progress
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.training.batch_norm import moving_statistics
from rampline.training.checkpoint import restore_newest, save_checkpoint
from rampline.training.controller import Launch, RunClock
from rampline.training.engine import Engine, StepCallback
from rampline.training.state import TrainingState, make_state
from rampline.training.strategy import configure_devices, make_strategy
from rampline.training.train import make_engine, train

Arrays = dict[str, np.ndarray]
Function = Callable[..., Arrays]
RunRoles = Callable[..., list[Arrays]]
ROLE_SECONDS = 240
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["rampline.training.train", "rampline.training.strategy"])


def run_roles(
    function: Function,
    config: RunConfig,
    dataset: PreparedDataset,
    folder: Path,
    *arguments: Any,
    workers: int | None = None,
) -> list[Arrays]:
    """What `function(config, dataset, task, strategy, folder, *arguments)` returns in each role that trains.

    There may be fewer `workers` than the configuration says. Workers and servers of a parameter-server chief are those
    of Rampline.
    """
    tasks = local_tasks(config, workers)
    if len(tasks) == 1 and config.strategy != "multi_worker":
        return [_run_here(function, config, dataset, folder, *arguments)]
    has_servers = config.strategy == "parameter_server"
    if has_servers:
        identity = RunIdentity(study="test", name="run", dataset=str(dataset.directory))
        RunDirectory(folder / "run").create(config, identity)
    training = tasks[:1] if has_servers else tasks
    pipes = [context.Pipe() for _ in training]
    processes = [
        context.Process(target=_be_role, args=(told, function, config, dataset, task, folder, *arguments))
        for (_, told), task in zip(pipes, training, strict=True)
    ]
    processes += [
        context.Process(target=_be_server, args=(folder / "run", task)) for task in tasks if task not in training
    ]
    try:
        for process in processes:
            process.start()
        for _, told in pipes:
            told.close()
        return [_receive(pipe) for pipe, _ in pipes]
    finally:
        # All at once, and only now: a worker that left would end the runtime of the others.
        for process in processes:
            process.kill()
            process.join()


def _run_here(function: Function, config: RunConfig, dataset: PreparedDataset, folder: Path, *arguments: Any) -> Arrays:
    keras.config.set_dtype_policy(config.precision)
    try:
        return function(config, dataset, ALONE, make_strategy(config), folder, *arguments)
    finally:
        reset_keras()


def assert_same_arrays(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert sorted(found) == sorted(wanted)
    assert [name for name in wanted if found[name].tobytes() != wanted[name].tobytes()] == []


def reset_keras() -> None:
    """What a role leaves behind in its process is as the next test finds it in a fresh one."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    keras.backend.clear_session()


def _receive(pipe: Connection) -> Arrays:
    assert pipe.poll(ROLE_SECONDS), "a role takes too long"
    answer = pipe.recv()  # EOFError: it was killed
    assert not isinstance(answer, str), answer
    return answer


def _be_role(
    told: Connection, function: Function, config: RunConfig, dataset: PreparedDataset, task: Task, *arguments: Any
) -> None:
    try:
        os.environ["TF_CONFIG"] = task.to_json()
        configure_devices(config)
        told.send(function(config, dataset, task, make_strategy(config), *arguments))
    except Exception:  # noqa: BLE001 - the test shows it
        told.send(traceback.format_exc())
    told.recv()  # until the test ends it


def _be_server(run_directory: Path, task: Task) -> None:
    from rampline import worker

    os.environ["TF_CONFIG"] = task.to_json()
    worker.run([str(run_directory)])


def train_steps(
    config: RunConfig, dataset: PreparedDataset, task: Task, strategy: tf.distribute.Strategy, _: Path, steps: int
) -> Arrays:
    """The loss of every step, and all variables at the end."""
    state = make_state(config, dataset, strategy)
    engine = make_engine(config, dataset, strategy, state, task)
    losses = np.concatenate([done.losses for done in engine.run_steps(0, steps)])
    own_statistics = [np.asarray(v) for v in moving_statistics(state.model)]
    engine.average_moving_statistics()
    evaluated = engine.evaluate("validation")
    devices = [v.value.device for v in state.model.variables]
    arrays = {f"variable_{i:03d}": np.asarray(v.value) for i, v in enumerate(state.model.variables)}
    arrays |= {f"own_{i:03d}": value for i, value in enumerate(own_statistics)}
    arrays |= {f"averaged_{i:03d}": np.asarray(v) for i, v in enumerate(moving_statistics(state.model))}
    arrays |= {"losses": losses, "evaluated": evaluated, "devices": np.array(devices)}
    arrays |= {"step": np.asarray(state.step), "iterations": np.asarray(state.optimizer.iterations.value)}
    engine.finish()
    return arrays


DRAWN_STEPS, SAVED_STEP = 4, 2


def draw_masks(
    config: RunConfig, dataset: PreparedDataset, task: Task, strategy: tf.distribute.Strategy, folder: Path
) -> Arrays:
    """(steps, local replicas, 64) masks of 4 steps; and of the last two in a new state, from a checkpoint."""
    folder = folder / task.name

    def train(first: int, last: int) -> np.ndarray:
        state = make_state(config, dataset, strategy)
        if first:
            load_checkpoint(folder / f"step-{first:08d}", state.model, state.optimizer)
            state.step.assign(first)
        engine = make_engine(config, dataset, strategy, state, task)
        (kept,) = [v.value for v in state.model.non_trainable_variables if v.name == "kept"]
        masks = []
        for step in range(first, last):
            if step == SAVED_STEP and not first:
                save_checkpoint(folder, Progress(step=step), state.model, state.optimizer)
            list(engine.run_steps(step, 1))
            masks.append([np.asarray(copy) for copy in strategy.experimental_local_results(kept)])
        engine.finish()
        return np.array(masks)

    return {"masks": train(0, DRAWN_STEPS), "again": train(SAVED_STEP, DRAWN_STEPS)}


# Far below where a loss of this network overflows.
FIRST_SCALE = 2.0**10
SCALED_STEPS, BAD_STEP, GROWTH_STEPS = 11, 6, 4


def overflow_once(
    config: RunConfig, dataset: PreparedDataset, task: Task, strategy: tf.distribute.Strategy, _: Path
) -> Arrays:
    """In mixed_float16: scale, count of updates and weights of all replicas of this process after every step.

    The scale doubles after 4 steps; at step 6 the loss of the last replica alone is infinite.
    """
    state = make_state(config, dataset, strategy)
    optimizer: Any = state.optimizer
    optimizer.dynamic_scale.assign(FIRST_SCALE)
    optimizer.dynamic_growth_steps = GROWTH_STEPS
    optimizer.scale_loss = _overflow(optimizer.scale_loss, state, strategy.num_replicas_in_sync - 1)
    engine = make_engine(config, dataset, strategy, state, task)
    noted: dict[str, list] = {name: [] for name in ("losses", "scale", "updates", "weights")}
    for step in range(SCALED_STEPS):
        (done,) = engine.run_steps(step, 1)
        noted["losses"].append(done.losses[0])
        for name, variable in {"scale": optimizer.dynamic_scale, "updates": optimizer.iterations}.items():
            noted[name].append([np.asarray(v) for v in strategy.experimental_local_results(variable.value)])
        variables = [strategy.experimental_local_results(v.value) for v in state.model.trainable_variables]
        copies = zip(*variables, strict=True)
        noted["weights"].append([np.concatenate([np.ravel(v) for v in copy]) for copy in copies])
    engine.finish()
    return {name: np.array(values) for name, values in noted.items()}


def _overflow(scale_loss: Callable, state: TrainingState, last: int) -> Callable:
    def scale(loss: tf.Tensor, **more: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        assert context is not None
        is_last = tf.equal(context.replica_id_in_sync_group, last)
        bad = tf.logical_and(is_last, tf.equal(state.step, BAD_STEP))
        return scale_loss(loss, **more) * tf.where(bad, np.inf, 1.0)

    return scale


STATISTICS_STEPS = 3


def save_and_restore(
    config: RunConfig, dataset: PreparedDataset, task: Task, strategy: tf.distribute.Strategy, _: Path, folder: Path
) -> Arrays:
    """All values of all replicas of this process at each point, as `MOMENT/VARIABLE/REPLICA`.

    Trains 3 steps, saves, trains 3 more; then restores into a new state and trains the same 3 again, and gets the
    statistics of another number of replicas.
    """
    role = _Saving(config, dataset, task, strategy)
    statistics = role.train_and_save(folder)
    role.restore_and_train(folder, statistics)
    return role.arrays


class _Saving:
    def __init__(
        self, config: RunConfig, dataset: PreparedDataset, task: Task, strategy: tf.distribute.Strategy
    ) -> None:
        self.parts, self.task, self.strategy = (config, dataset, strategy), task, strategy
        self.arrays: Arrays = {}

    def make(self) -> tuple[TrainingState, Engine]:
        """A new state, and an engine that trains it."""
        state = make_state(*self.parts)
        return state, make_engine(*self.parts, state, self.task)

    def note(self, moment: str, state: TrainingState) -> None:
        """Keep every variable of every replica."""
        for i, variable in enumerate([*state.model.variables, *state.optimizer.variables]):
            value = variable.value if isinstance(variable, keras.Variable) else variable
            for replica, local in enumerate(self.strategy.experimental_local_results(value)):
                self.arrays[f"{moment}/{i:03d}/{replica}"] = np.asarray(local)

    def note_statistics(self, name: str, engine: Engine) -> np.ndarray:
        """Keep what the engine reads of all replicas."""
        statistics = engine.read_statistics()
        assert statistics is not None
        self.arrays[name] = statistics
        return statistics

    def train_and_save(self, folder: Path) -> np.ndarray:
        """Returns the statistics that were saved."""
        state, engine = self.make()
        self.note("first", state)
        list(engine.run_steps(0, STATISTICS_STEPS))
        self.note("before", state)
        statistics = self.note_statistics("gathered", engine)
        if self.task.worker_number == 0:
            progress = Progress(step=STATISTICS_STEPS)
            save_checkpoint(folder, progress, state.model, state.optimizer, replica_statistics=statistics)
        self.note("saved", state)
        engine.finish()
        list(engine.run_steps(STATISTICS_STEPS, STATISTICS_STEPS))
        self.note("trained", state)
        return statistics

    def restore_and_train(self, folder: Path, statistics: np.ndarray) -> None:
        state, engine = self.make()
        restored = restore_newest(folder, state.model, state.optimizer, warn=print)
        assert restored is not None
        assert restored.replica_statistics is not None
        state.step.assign(restored.progress.step)
        self.note("averaged", state)
        engine.write_statistics(restored.replica_statistics)
        self.note("restored", state)
        self.note_statistics("gathered again", engine)
        list(engine.run_steps(STATISTICS_STEPS, STATISTICS_STEPS))
        self.note("trained again", state)
        load_checkpoint(restored.path, state.model, state.optimizer)
        engine.write_statistics(np.concatenate([statistics, statistics[:1]]))
        self.note("rescaled", state)
        engine.average_moving_statistics()
        self.arrays["names"] = np.array([variable.path for variable in state.model.variables])
        engine.finish()


def train_on(
    config: RunConfig, dataset: PreparedDataset, task: Task, strategy: tf.distribute.Strategy, _: Path, *span: Any
) -> Arrays:
    """From the last checkpoint of a folder to a step, with a checkpoint there: losses, and what evaluation finds."""
    folder, until = span
    state = make_state(config, dataset, strategy)
    engine = make_engine(config, dataset, strategy, state, task)
    restored = restore_newest(folder, state.model, state.optimizer, warn=print)
    first = restored.progress.step if restored else 0
    state.step.assign(first)
    if restored:
        engine.write_statistics(restored.replica_statistics)
    losses = np.concatenate([done.losses for done in engine.run_steps(first, until - first)])
    statistics = engine.read_statistics()
    if task.is_chief:
        save_checkpoint(
            folder, Progress(step=until), state.model, state.optimizer, replica_statistics=statistics, keep=9
        )
    engine.average_moving_statistics()
    evaluated = engine.evaluate("validation")
    averaged = np.concatenate([np.ravel(v) for v in moving_statistics(state.model)])
    engine.finish()
    return {"losses": losses, "averaged": averaged, "evaluated": evaluated}


def train_whole(
    config: RunConfig, dataset: PreparedDataset, task: Task, strategy: tf.distribute.Strategy, _: Path, *at: Any
) -> Arrays:
    """A whole training in a run directory, which is continued where it was begun.

    With a second argument the first epoch ends at so many seconds, and the clock goes on by one whenever it is read.
    """
    path, first_epoch_ends = at if len(at) == 2 else (*at, None)
    directory = RunDirectory(path)
    directory.create(config, RunIdentity(study="test", name="run", dataset=str(dataset.directory)))
    events, callback = EventWriter(directory.events_file) if task.is_chief else None, StepCallback()
    with pytest.MonkeyPatch.context() as patch:
        if first_epoch_ends is not None:
            looks = itertools.count()
            patch.setattr(
                RunClock,
                "wall_seconds",
                lambda clock: first_epoch_ends + next(looks) if directory.read_events("epoch") else 0.0,
            )
        launch = Launch(at=time.monotonic())
        train(config, task, directory, strategy, events, attempt=1, launch=launch, callback=callback)
    return {}
