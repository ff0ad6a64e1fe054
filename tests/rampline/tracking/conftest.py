"""An MLflow store per test, copied from one that was initialised once, and run directories as training leaves them."""

import json
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from rampline.config import RunConfig, from_dict
from rampline.data.dataset import FORMAT_VERSION
from rampline.files import write_json
from rampline.record.delivery_state import mark_undelivered
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.tracking.delivery import Projection
from rampline.tracking.experiment import begin_run
from rampline.tracking.store import experiment_id, open_tracking

CURVE = [[0.0, 0.001], [1.5, 0.0009], [3.0, 0.0005]]


@pytest.fixture
def home(tracked_home) -> Home:
    return tracked_home


@pytest.fixture
def client(home) -> MlflowClient:
    return open_tracking(home)


@pytest.fixture
def parent(client, home) -> str:
    """Id of the run of an execution that is running."""
    tags = {"rampline.accuracy_tolerance": "0.01"}
    return begin_run(client, experiment_id(client, "digits", home), study="digits", execution="e1", tags=tags)


@pytest.fixture
def deliver(client, parent):
    """Brings a run directory to MLflow, in a state or as it is, and returns the id of its run."""

    def call(directory: RunDirectory, status: str = "", failure: str | None = None) -> str:
        if status:
            mark_undelivered(directory.path, status, failure)
        projection = Projection(client, directory, parent)
        projection.update()
        return projection.run_id

    return call


@pytest.fixture
def dataset(tmp_path) -> Path:
    """Manifest and report of a prepared dataset."""
    directory = tmp_path / "data" / "digits-0123"
    manifest = {
        "format_version": FORMAT_VERSION,
        "source": "digits",
        "fingerprint": "0123abcd" * 8,
        "class_names": ["0", "1"],
        "image_shape": [8, 8, 1],
        "splits": {"train": 100, "validation": 10},
        "storage": "raw_files",
        "undecodable": 0,
    }
    write_json(directory / "manifest.json", manifest)
    write_json(directory / "data_report.json", {"splits": {"train": 100}})
    (directory / "data_report.csv").write_text("split,class,examples\ntrain,0,50\n")
    return directory


@pytest.fixture
def make_run_directory(tmp_path, dataset):
    """Makes a run directory: config.json and run.json, as they are before training."""

    def make(name: str = "baseline", execution: str = "e1", **values) -> RunDirectory:
        config = from_dict(values) if values else RunConfig()
        directory = RunDirectory(tmp_path / "runs" / "digits" / execution / name)
        published = {"train_seconds": 2090.0, "test_accuracy": 0.94}
        commit = "a" * 40
        about = {"dataset": str(dataset), "git_commit": commit, "published": published, "description": ""}
        directory.create(config, RunIdentity(study="digits", name=name, **about))
        return directory

    return make


@pytest.fixture
def started():
    """Makes the event a chief begins with."""

    def make(**changes) -> dict:
        event = {
            "event": "started",
            "time": 1000.0,
            "replicas": 2,
            "num_replicas_in_sync": 2,
            "per_replica_batch_size": 32,
            "global_batch_size": 64,
            "steps_per_epoch": 21,
            "peak_learning_rate": 0.002,
            "epochs": 3,
            "attempt": 1,
            "learning_rate_curve": CURVE,
        }
        return event | changes

    return make


@pytest.fixture
def epoch():
    """Makes the event at the end of an epoch, with figures that tell the epoch."""

    def make(number: int, **changes) -> dict:
        metrics = {
            "train_loss": 1.0 / number,
            "train_regularization_loss": 0.25,
            "train_accuracy": 0.5 + number / 100,
            "val_loss": 2.0 / number,
            "val_accuracy": 0.4 + number / 100,
            "learning_rate": 0.001 * number,
            "epoch_seconds": 1.5,
            "images_per_second": 1000.0 + number,
            "input_wait_fraction": 0.1,
            "elapsed_seconds": 1.5 * number,
        }
        return {"event": "epoch", "time": 1000.0 + 10 * number, "epoch": number, "metrics": metrics | changes}

    return make


@pytest.fixture
def append_events():
    """Writes events as the chief does."""

    def append(directory: RunDirectory, *events: dict) -> None:
        with open(directory.events_file, "a") as file:
            file.writelines(json.dumps(event) + "\n" for event in events)

    return append


@pytest.fixture
def history():
    """Reads a metric as `[(step, value), …]`."""

    def read(client: MlflowClient, run_id: str, metric: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in client.get_metric_history(run_id, metric)]

    return read


@pytest.fixture
def evaluation() -> dict:
    """What the evaluation process writes to evaluation.json, for two classes."""
    scores = {"precision": 0.9, "recall": 0.9, "f1-score": 0.9, "support": 10.0}
    return {
        "split": "test",
        "examples": 20,
        "test_loss": 0.25,
        "test_accuracy": 0.9,
        "best_epoch": 2,
        "class_names": ["0", "1"],
        "confusion_cells": [[0, 0, 9], [0, 1, 1], [1, 0, 1], [1, 1, 9]],
        "classification_report": {"0": scores, "1": scores, "accuracy": 0.9},
    }
