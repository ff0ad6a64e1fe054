"""A whole training in this process: what it makes of clocks that jump, losses that overflow and checkpoints that go."""

import dataclasses
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from faults import final_variables
from runs import make_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rampline.config import ExplainConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import Preempted, RunFailed
from rampline.files import read_json
from rampline.jobs.tf_config import ALONE
from rampline.record.checkpoints import (
    Progress,
    best_checkpoint,
    find_checkpoints,
    last_checkpoint,
    read_manifest,
    write_manifest,
)
from rampline.record.events import EventWriter
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.training import probes, synchronous
from rampline.training.controller import Launch
from rampline.training.engine import StepCallback, StopRequested
from rampline.training.models import make_model
from rampline.training.synchronous import SynchronousEngine
from rampline.training.train import train


@pytest.fixture
def trained(digits: PreparedDataset, tmp_path: Path):
    """`trained(epochs=2)` trains a run to that epoch, from where it is."""

    def run(epochs: int, *, callback: StepCallback | None = None, **changes: Any) -> RunDirectory:
        config = dataclasses.replace(make_config("single"), epochs=epochs, checkpoint_keep=5, **changes)
        directory = RunDirectory(tmp_path / "run")
        for file in (directory.config_file, directory.result_file):
            file.unlink(missing_ok=True)
        directory.create(config, RunIdentity(study="test", name="run", dataset=str(digits.directory)))
        strategy, events = tf.distribute.OneDeviceStrategy("/cpu:0"), EventWriter(directory.events_file)
        launch, parts = Launch(at=time.monotonic()), (config, ALONE, directory, strategy, events)
        train(*parts, attempt=1, launch=launch, callback=callback or StepCallback())
        return directory

    yield run
    keras.backend.clear_session()


def progress_of(directory: RunDirectory) -> Progress:
    path = last_checkpoint(directory.checkpoints)
    assert path is not None
    return read_manifest(path).progress


def test_a_validation_loss_that_is_not_finite_does_not_keep_a_run_from_its_end(trained, monkeypatch) -> None:
    evaluate = SynchronousEngine.evaluate
    monkeypatch.setattr(SynchronousEngine, "evaluate", lambda *a: evaluate(*a) * np.array([math.nan, 1, 1, 1]))
    directory = trained(1)
    result = json.loads(directory.result_file.read_text(), parse_constant=pytest.fail)
    assert result["metrics"]["val_loss"] is None
    assert 0 < result["best_val_accuracy"] == result["metrics"]["val_accuracy"]
    assert progress_of(directory).metrics == result["metrics"]


def test_a_clock_that_jumps_is_no_waiting_for_the_input_and_the_opening_of_a_split_no_call_of_the_training(
    trained, monkeypatch
) -> None:
    """Each reading of the clock is 1800 s later, or earlier, than that of the machine; a split may be read whole."""
    read, jumps = tf.timestamp, iter([0.0, 1800.0] * 100)
    monkeypatch.setattr(tf, "timestamp", lambda: read() + next(jumps))
    told, open_split = list[str](), synchronous.open_examples
    monkeypatch.setattr(synchronous, "open_examples", lambda *a: told.append(f"{a[1]} opens") or open_split(*a))
    metrics = read_json(trained(1, callback=StepCallback(advance=told.append)).result_file)["metrics"]
    assert 0 <= metrics["input_wait_fraction"] <= 1
    at = told.index("validation opens")
    assert told[at - 2 : at + 2] == ["train", "open", "validation opens", "evaluate"]


def test_a_training_that_goes_on_clears_away_damaged_and_unfinished_checkpoints(trained) -> None:
    directory = trained(2)
    before, damaged = find_checkpoints(directory.checkpoints)
    (damaged / "variables.npz").write_bytes(b"")
    unfinished = directory.checkpoints / f".{damaged.name}-half"
    unfinished.mkdir()
    trained(3)
    assert not unfinished.exists()
    assert before in find_checkpoints(directory.checkpoints)
    assert directory.read_events("warning")
    assert read_manifest(damaged).progress.epoch == 2  # made again


def test_an_epoch_whose_line_was_lost_is_told_again(trained) -> None:
    """As after a power cut: checkpoints are synced, lines are not."""
    file = trained(2).events_file
    lines = file.read_text().splitlines(keepends=True)
    epoch = next(event for event in map(json.loads, lines) if (event["event"], event.get("epoch")) == ("epoch", 2))
    file.write_text("".join(line for line in lines if json.loads(line) != epoch))
    told = trained(3).read_events("epoch")
    assert [event["epoch"] for event in told] == [1, 2, 3]
    assert told[1]["metrics"] == epoch["metrics"]


def test_a_training_goes_on_without_the_weights_that_it_began_with(trained, digits, tmp_path: Path) -> None:
    """As on a machine that cannot download them."""
    file, began = tmp_path / "began.keras", make_config("single").model
    make_model(began, image_shape=digits.image_shape, classes=10).save(file)
    with_weights = dataclasses.replace(began, weights=str(file))
    undisturbed = final_variables(trained(2, model=with_weights))
    shutil.rmtree(tmp_path / "run")
    trained(1, model=with_weights)
    file.unlink()
    assert final_variables(trained(2, model=with_weights)) == undisturbed


def test_a_training_goes_on_without_its_best_checkpoint_and_says_so(trained) -> None:
    directory = trained(1)
    path = last_checkpoint(directory.checkpoints)
    assert path is not None
    manifest = read_manifest(path)
    lost = dataclasses.replace(manifest.progress, best_epoch=1, best_step=3, best_val_accuracy=0.999)
    write_manifest(path, dataclasses.replace(manifest, progress=lost))
    result = read_json(trained(2).result_file)
    (warning,) = directory.read_events("warning")
    expected = "the best checkpoint (epoch 1, step 3) is missing: the best from epoch 1 on is kept instead"
    assert warning["message"] == expected
    accuracies = [event["metrics"]["val_accuracy"] for event in directory.read_events("epoch")]
    assert result["best_val_accuracy"] == max(accuracies)
    best = best_checkpoint(directory.checkpoints)
    assert best is not None
    assert best.name == f"step-{result['best_epoch'] * result['steps'] // 2:08d}"


def test_weights_that_are_not_finite_are_not_saved_and_the_checkpoint_before_is_the_one_to_go_on_from(
    trained, monkeypatch
) -> None:
    """As after a step whose loss is finite, and its gradient is not."""
    directory, evaluate = trained(1), SynchronousEngine.evaluate

    def overflow(engine: SynchronousEngine, split: str) -> np.ndarray:
        weights = engine.state.model.trainable_variables[-1]
        weights.assign(np.full(weights.shape, np.inf, np.float32))
        return evaluate(engine, split)

    with monkeypatch.context() as patch:
        patch.setattr(SynchronousEngine, "evaluate", overflow)
        with pytest.raises(RunFailed, match=r"^the weights \S+ are not finite after step 10"):
            trained(2)
    assert [path.name for path in find_checkpoints(directory.checkpoints)] == ["step-00000005"]
    assert read_json(trained(2).result_file)["steps"] == 10
    assert [event["first_step"] for event in directory.read_events("started")] == [0, 5, 5]


def test_probes_that_fail_are_told_of_and_the_run_is_complete(trained, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("3 GiB wanted")

    monkeypatch.setattr(probes, "probe_strategy", fail)
    directory = trained(1, explain=ExplainConfig())
    assert directory.is_complete
    (warning,) = directory.read_events("warning")
    assert warning["message"] == "where a step's time goes is not measured: MemoryError: 3 GiB wanted"


def test_probes_that_are_stopped_are_made_when_the_run_goes_on(trained, monkeypatch) -> None:
    def stop(*_: object) -> None:
        raise StopRequested

    with monkeypatch.context() as patch:
        patch.setattr(probes, "probe_strategy", stop)
        with pytest.raises(Preempted, match=r"^stopped on request during the probes$"):
            trained(1, explain=ExplainConfig())
    directory = trained(1, explain=ExplainConfig())
    (stopped,) = directory.read_events("stopped")
    assert (stopped["epoch"], stopped["step"]) == (1, 5)
    assert directory.is_complete
    assert directory.probes_file.is_file()
    assert not directory.probing_file.exists()


@pytest.fixture
def worse_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all epochs the first is the best."""
    evaluate, epochs = SynchronousEngine.evaluate, []

    def worse(*arguments: Any) -> np.ndarray:
        epochs.append(evaluate(*arguments))
        return np.array([1.0, 10.0 / len(epochs), 10.0, 0.0])

    monkeypatch.setattr(SynchronousEngine, "evaluate", worse)


@pytest.mark.usefixtures("worse_each_time")
def test_a_step_of_a_checkpoint_may_be_the_last_of_an_epoch(trained) -> None:
    """An epoch has 5 steps."""
    directory = trained(5, checkpoint_every_epochs=10, checkpoint_every_steps=10)
    assert [event["epoch"] for event in directory.read_events("checkpoint")] == [1, 2, 4, 5]


@pytest.mark.long
@pytest.mark.usefixtures("worse_each_time")
def test_a_checkpoint_every_third_epoch_of_the_best_and_of_the_last(trained) -> None:
    """The first epoch is the best; a run that loses its last checkpoint comes to the same bits from the one before."""
    every = {"checkpoint_every_epochs": 3, "tensorboard": "histograms"}
    keras.backend.clear_session()  # as in a process of its own: names of weights begin anew
    directory = trained(5, **every)
    saved = [event["epoch"] for event in directory.read_events("checkpoint")]
    assert saved == [1, 3, 5]
    last = last_checkpoint(directory.checkpoints)
    assert last is not None
    whole = final_variables(directory)
    shutil.rmtree(last)
    keras.backend.clear_session()
    trained(5, **every)
    assert [event["epoch"] for event in directory.read_events("epoch")] == [1, 2, 3, 4, 5, 4, 5]
    assert final_variables(directory) == whole
    events = EventAccumulator(str(directory.tensorboard / "train"))
    events.Reload()
    drawn = {tag: [point.step for point in events.Tensors(tag)] for tag in events.Tags()["tensors"] if "histo" in tag}
    assert drawn
    assert set(map(tuple, drawn.values())) == {(1, 2, 3, 4, 5)}
    assert any(tag.endswith("kernel/histogram") for tag in drawn)


def test_a_folder_called_none_is_no_checkpoint(trained, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none").mkdir()
    assert trained(1).is_complete
