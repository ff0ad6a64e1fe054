"""A trained and evaluated execution of three small runs, to promote and to predict with: trained once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from executions import begin
from stored_data import store_here

from rampline.data.dataset import PreparedDataset
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.study import load_study

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

STUDY, MODEL = "registry", "rampline-registry"
# `worse` is trained on other images than the two others, and has other test images.
CONTENT = """
name: registry
base:
  data: {source: digits, limit: 40}
  batch: {size: 32}
  steps_per_call: 4
  explain: {steps: 0}
runs:
  fair: {set: {epochs: 5}}
  better: {set: {epochs: 10, seed: 3}}
  worse: {set: {epochs: 1, data: {limit: 5}}}
"""
RUNS = ("fair", "better", "worse")


@pytest.fixture(scope="session")
def trained(rampline_home: Path, forks: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the execution: `fair`, `better` and `worse`, complete, scored and in MLflow. 15 s."""
    # Every test session loads this file: what takes seconds to import waits until a test asks for it.
    from rampline.execution import close_execution, evaluate_runs, train_run

    study = tmp_path_factory.mktemp("study") / "registry.yaml"
    study.write_text(CONTENT)
    for data in load_study(str(study)).data:
        store_here(data, Home(root=rampline_home))
    execution = begin(study, Home(root=rampline_home))
    for run in RUNS:
        train_run(execution, run, on_event=lambda event: None, log=print)
    evaluate_runs(execution, RUNS, on_event=lambda event: None)
    close_execution(execution, "COMPLETE")
    return execution.folder


@pytest.fixture
def registry(rampline_home: Path, trained: Path) -> Iterator[MlflowClient]:
    """MLflow with these runs, and no registered model before and after the test."""
    from rampline.tracking.store import open_tracking

    client = open_tracking(Home(root=rampline_home))
    yield client
    delete_model(client)


def delete_model(client: MlflowClient) -> None:
    """The study's registered model with all its versions, if there is one."""
    for model in client.search_registered_models(f"name = '{MODEL}'"):
        client.delete_registered_model(model.name)


def aliases(client: MlflowClient) -> dict[str, int]:
    """Versions of the study's registered model by alias."""
    return {alias: int(version) for alias, version in client.get_registered_model(MODEL).aliases.items()}


def write_test_images(run: RunDirectory, folder: Path) -> list[Path]:
    """The run's test images as PNG files in two sub-folders, in the order of its predictions."""
    import tensorflow as tf

    dataset = PreparedDataset.open(Path(run.read_identity().dataset))
    pixels = np.fromfile(dataset.images_file("test"), np.uint8).reshape(-1, *dataset.image_shape)
    paths = [folder / ("even", "odd")[number % 2] / f"{number:05d}.png" for number in range(len(pixels))]
    for path, image in zip(paths, pixels, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(image).numpy())
    return paths
