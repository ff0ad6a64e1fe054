"""Promotion and prediction over an MLflow server that keeps the models itself."""

import json
import shutil
from pathlib import Path

import pytest
from mlflow_server import MlflowServer
from trained_runs import MODEL, STUDY, aliases, write_test_images

from rampline.files import read_json
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.registry.prediction import predict_folder
from rampline.registry.promotion import promote
from rampline.study.execution_file import Execution
from rampline.tracking.store import open_tracking
from rampline.tracking.sync import sync_execution

# tests/rampline/registry/test_promotion.py and tests/flows/test_predict.py show the same over sqlite.
pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_over_http_the_alias_moves_and_the_model_comes_from_the_server(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_server: MlflowServer
) -> None:
    # A copy: what a run directory knows of its MLflow run becomes the server's.
    execution = shutil.copytree(trained, tmp_path / "home" / "runs" / STUDY / "e2")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)
    home = Home(root=tmp_path / "home")
    client = open_tracking(home)
    sync_execution(client, Execution.open(execution), log=print)
    for run in ("fair", "better"):
        promote(str(execution / run), home=home, log=print)
    assert aliases(client) == {"champion": 2, "previous-champion": 1}
    version = client.get_model_version_by_alias(MODEL, "champion")
    assert json.loads(version.tags["rampline.gate.right_only_new"]) > 0

    directory = RunDirectory(execution / "better")
    run_id = read_json(directory.tracking_file)["run_id"]
    paths = write_test_images(directory, tmp_path / "images")
    shutil.rmtree(execution)
    made = predict_folder(STUDY, tmp_path / "images", home=home, output=tmp_path / "labels.csv")
    assert (version.run_id, made.model_version, made.images, made.unreadable) == (run_id, 2, len(paths), 0)
