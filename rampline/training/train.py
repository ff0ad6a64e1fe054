"""One training in this process, from the strategy to the result."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import tensorflow as tf

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.jobs.tf_config import Task
from rampline.record.checkpoints import find_checkpoints
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory
from rampline.training.controller import Controller, Launch
from rampline.training.engine import Engine, ExamplesLog, StepCallback
from rampline.training.fit import FitEngine
from rampline.training.parameter_server import ParameterServerEngine
from rampline.training.state import TrainingState, make_state
from rampline.training.synchronous import SynchronousEngine


def train(
    config: RunConfig,
    task: Task,
    run_directory: RunDirectory,
    strategy: tf.distribute.Strategy,
    events: EventWriter | None,
    *,
    attempt: int,
    launch: Launch,
    callback: StepCallback,
) -> None:
    """Train this role's part of a run; returns when the run is complete.

    Raises:
        Preempted: when a role was asked to stop, and a checkpoint is saved.
        RunFailed: when training cannot go on.
    """
    dataset = PreparedDataset.open(Path(run_directory.read_identity().dataset))
    begins = config
    if find_checkpoints(run_directory.checkpoints):
        # They hold all weights. Those that the training began with may be gone, and cannot be downloaded everywhere.
        begins = dataclasses.replace(config, model=dataclasses.replace(config.model, weights="none"))
    state = make_state(begins, dataset, strategy, advance=callback.advance)
    examples_log = ExamplesLog(run_directory.examples_file(task.name), attempt) if config.log_examples else None
    engine = make_engine(config, dataset, strategy, state, task, callback=callback, examples_log=examples_log)
    controller = Controller(
        config=config,
        engine=engine,
        run_directory=run_directory,
        steps_per_epoch=config.steps_per_epoch(dataset.splits["train"]),
        workers=task.workers,
        events=events,
        attempt=attempt,
        launch=launch,
        callback=callback,
    )
    controller.tell_start(dataset.splits)
    # It may have been decided by an attempt that did not come to its result.
    controller.decide()
    if isinstance(engine, FitEngine):
        with controller.stopping():
            engine.train(controller)
    controller.train()


def make_engine(
    config: RunConfig,
    dataset: PreparedDataset,
    strategy: tf.distribute.Strategy,
    state: TrainingState,
    task: Task,
    *,
    callback: StepCallback | None = None,
    examples_log: ExamplesLog | None = None,
    measure_staleness: bool = False,
) -> Engine:
    """The engine of the run's strategy and `engine` setting; see the engines for the optional parts."""
    parts = {"config": config, "dataset": dataset, "strategy": strategy, "state": state, "callback": callback}
    if config.strategy == "parameter_server":
        return ParameterServerEngine(**parts, measure_staleness=measure_staleness)
    make = FitEngine if config.engine == "fit" else SynchronousEngine
    return make(**parts, worker=task.worker_number, examples_log=examples_log)
