"""When a run is decided: the settings `stop` over the history of its epochs, and whole trainings that stop by them."""

import dataclasses
import itertools
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import pytest
from faults import final_variables
from role_functions import RunRoles, train_whole
from runs import make_config

from rampline.config import ClusterConfig, RunConfig, StopConfig
from rampline.files import read_json
from rampline.record.checkpoints import Progress, last_checkpoint, step_of
from rampline.record.run_directory import RunDirectory
from rampline.training.controller import next_epoch
from rampline.training.early_stop import decide, describe_stop, stopped_after

EPOCHS = 20


def stop_after(stop: StopConfig, losses: Sequence[float | None], accuracies: Sequence[float | None] = ()) -> str | None:
    """What is decided at the end of the first epoch after which anything is."""
    progress, config = Progress(), RunConfig(epochs=EPOCHS, stop=stop)
    for loss, accuracy in itertools.zip_longest(losses, accuracies):
        progress = next_epoch(progress, {"val_loss": loss, "val_accuracy": accuracy})
        if why := decide(config, progress, 0.0):
            return why
    return None


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_patience_is_that_of_keras(patience: int) -> None:
    found = list[int]()
    for seed in range(200):
        draw = random.Random(seed)
        losses = [round(1 - epoch / 30 + 0.3 * draw.random(), 1) for epoch in range(EPOCHS - 1)]
        callback = keras.callbacks.EarlyStopping("val_loss", patience=patience, mode="min")
        callback.set_model(keras.Sequential())
        callback.model.stop_training = False
        callback.on_train_begin()
        for epoch, loss in enumerate(losses):
            callback.on_epoch_end(epoch, {"val_loss": loss})
            if callback.model.stop_training:
                break
        epoch = callback.stopped_epoch + 1
        plural = "" if patience == 1 else "s"
        words = f"after epoch {epoch} of {EPOCHS}: no better validation loss for {patience} epoch{plural}"
        assert stop_after(StopConfig(patience=patience), losses) == (words if callback.stopped_epoch else None)
        found.append(epoch)
    assert len(set(found)) > 3


def test_a_loss_that_is_not_finite_is_no_better_one() -> None:
    stop = StopConfig(patience=2)
    assert stop_after(stop, [None, 0.5, None, 0.4, None]) is None
    assert stop_after(stop, [0.5, None, None]) == "after epoch 3 of 20: no better validation loss for 2 epochs"


def test_the_target_is_reached_by_the_accuracy_itself() -> None:
    stop, losses = StopConfig(target_accuracy=0.95), [1.0] * 4
    assert stop_after(stop, losses, [0.9499, None, 0.95]) == "after epoch 3 of 20: target accuracy 0.95 reached"
    assert stop_after(stop, losses, [0.9, 0.94]) is None


@pytest.mark.parametrize(
    ("minutes", "cost", "price", "seconds", "limit"),
    [
        (30, None, None, 1800, "30 minutes"),
        (1, 2, None, 60, "1 minute"),
        (None, 2.0, 4.0, 1800, "$2.00"),
        (10, 2.0, 4.0, 600, "10 minutes"),
        (40, 2.0, 4.0, 1800, "$2.00"),
    ],
)
def test_the_time_is_over_with_the_first_limit(minutes, cost, price, seconds: float, limit: str) -> None:
    cluster = ClusterConfig(price_per_hour=price, machine=None if price else "looked-up-in-the-study")
    config = RunConfig(epochs=EPOCHS, cluster=cluster, stop=StopConfig(max_minutes=minutes, max_cost_usd=cost))
    at = {epoch: decide(config, Progress(epoch=epoch), seconds) for epoch in (0, 1, 7, EPOCHS)}
    assert at == {0: None, 1: f"after epoch 1 of 20: limit of {limit} reached", 7: at[7], EPOCHS: None}
    assert stopped_after(str(at[7])) == 7
    assert decide(config, Progress(epoch=7), seconds - 0.1) is None


def test_what_it_waits_for_is_told_in_words() -> None:
    stop = StopConfig(target_accuracy=0.95, patience=3, max_minutes=30, max_cost_usd=2)
    config = RunConfig(stop=stop, cluster=ClusterConfig(price_per_hour=1))
    assert describe_stop(config) == (
        "at a validation accuracy of 0.95, after 3 epochs without a better validation loss, after 30 minutes or "
        "at a cost of $2.00"
    )
    assert describe_stop(RunConfig(stop=StopConfig(patience=1))) == "after 1 epoch without a better validation loss"
    assert describe_stop(RunConfig()) == ""


ENGINES = [
    pytest.param("single", "loop", {}, id="loop"),
    pytest.param("single", "fit", {}, id="fit", marks=pytest.mark.long),
    pytest.param("mirrored", "loop", {"replicas": 2, "virtual_devices": 2}, id="mirrored", marks=pytest.mark.long),
    pytest.param("mirrored", "fit", {"replicas": 2, "virtual_devices": 2}, id="mirrored-fit", marks=pytest.mark.long),
    pytest.param("multi_worker", "loop", {"workers": 2}, id="multi_worker", marks=pytest.mark.long),
    pytest.param(
        "parameter_server",
        "loop",
        {"workers": 2, "parameter_servers": 1},
        id="parameter_server",
        marks=pytest.mark.long,
    ),
]


def config_of(strategy: str, engine: str, cluster: dict, **stop: Any) -> RunConfig:
    config = make_config(strategy, **cluster)
    return dataclasses.replace(config, engine=engine, epochs=EPOCHS, steps_per_call=1, stop=StopConfig(**stop))


def epochs_told(directory: RunDirectory) -> list[int]:
    return [event["epoch"] for event in directory.read_events("epoch")]


@pytest.mark.parametrize(("strategy", "engine", "cluster"), ENGINES)
def test_a_run_stops_at_its_target_and_one_that_was_killed_then_makes_no_further_step(
    strategy: str, engine: str, cluster: dict, run_roles: RunRoles, tmp_path: Path
) -> None:
    config, directory = config_of(strategy, engine, cluster, target_accuracy=0.5), RunDirectory(tmp_path / "run")
    run_roles(train_whole, config, directory.path)
    metrics = [event["metrics"] for event in directory.read_events("epoch")]
    assert [m["val_accuracy"] >= 0.5 for m in metrics] == [False] * (len(metrics) - 1) + [True]
    result, stopped = read_json(directory.result_file), f"after epoch {len(metrics)} of 20: target accuracy 0.5 reached"
    assert (result["epochs"], result["steps"], result["stopped"]) == (len(metrics), 5 * len(metrics), stopped)
    assert 1 < len(metrics) < EPOCHS
    (decided,) = directory.read_events("decided")
    assert (decided["epoch"], decided["stopped"]) == (len(metrics), stopped)
    directory.result_file.unlink()
    run_roles(train_whole, config, directory.path)
    again = read_json(directory.result_file)
    assert {**again, "wall_seconds": 0, "logging_seconds": 0} == {**result, "wall_seconds": 0, "logging_seconds": 0}
    assert epochs_told(directory) == [*range(1, len(metrics) + 1)]


@pytest.mark.parametrize("engine", ["loop", pytest.param("fit", marks=pytest.mark.long)])
def test_patience_goes_on_where_the_last_checkpoint_was(engine: str, run_roles: RunRoles, tmp_path: Path) -> None:
    """Killed between an epoch and its checkpoint: the same epoch is trained, and is the last, once more."""
    config = config_of("single", engine, {}, patience=3)
    rate = dataclasses.replace(config.learning_rate, peak=0.3, floor=0.0)
    config, directory = dataclasses.replace(config, learning_rate=rate), RunDirectory(tmp_path / "run")
    run_roles(train_whole, config, directory.path)
    result, last = read_json(directory.result_file), last_checkpoint(directory.checkpoints)
    assert last is not None
    whole = final_variables(directory)
    losses = [event["metrics"]["val_loss"] for event in directory.read_events("epoch")]
    assert len(losses) == losses.index(min(losses)) + 1 + 3 == result["epochs"] < EPOCHS
    directory.result_file.unlink()
    shutil.rmtree(last)
    run_roles(train_whole, config, directory.path)
    assert read_json(directory.result_file)["stopped"] == result["stopped"]
    assert epochs_told(directory) == [*range(1, len(losses) + 1), len(losses)]
    assert final_variables(directory) == whole


@pytest.mark.parametrize(("strategy", "engine", "cluster"), ENGINES)
def test_an_epoch_that_the_time_cuts_short_does_not_count(
    strategy: str, engine: str, cluster: dict, run_roles: RunRoles, tmp_path: Path
) -> None:
    config, directory = config_of(strategy, engine, cluster, max_minutes=1), RunDirectory(tmp_path / "run")
    # The chief's clock is at 59 s when the first epoch ends, and goes on by a second whenever it is read.
    run_roles(train_whole, config, directory.path, 59.0)
    result, last = read_json(directory.result_file), last_checkpoint(directory.checkpoints)
    assert (result["epochs"], result["steps"]) == (1, 5)
    assert result["stopped"] == "after epoch 1 of 20: limit of 1 minute reached"
    assert result["train_seconds"] == result["metrics"]["epoch_seconds"]
    assert last is not None
    # A chief of parameter servers looks before it hands out the first step.
    assert step_of(last) in range(5 if strategy == "parameter_server" else 6, 10)
    directory.result_file.unlink()
    run_roles(train_whole, config, directory.path, 59.0)
    again = read_json(directory.result_file)
    assert (again["epochs"], again["steps"], again["stopped"]) == (1, 5, result["stopped"])
    assert epochs_told(directory) == [1]
    assert directory.read_events("started")[-1]["first_step"] == step_of(last)
