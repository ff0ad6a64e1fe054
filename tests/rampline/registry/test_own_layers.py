"""The gate loads a model as `rampline predict` will: with layers of the user's own, and without code from a file."""

from collections.abc import Callable
from pathlib import Path

import pytest
import small_models
from mlflow.tracking import MlflowClient
from runs import make_config

from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.registry.candidate import Candidate
from rampline.registry.checks import Check, check_model
from rampline.tracking.reconciliation import log_model
from rampline.training.saved_model import ModelMetadata, save_model

SHAPE, NAMES = (8, 8, 1), ("cat", "dog")


@pytest.fixture
def check(rampline_home: Path, forks: None, tmp_path: Path) -> Callable[[str, Path], Check]:
    """`check(model, folder)`: the gate's check of that network of `small_models`, of a run in `folder`."""
    from rampline.tracking.store import open_tracking

    home = Home(root=rampline_home)
    client: MlflowClient = open_tracking(home)
    experiment = client.create_experiment(f"own-layers-{tmp_path.name}", str(tmp_path / "artifacts"))

    def call(model: str, folder: Path) -> Check:
        name, saved = f"small_models:{model}", tmp_path / "model"
        metadata = ModelMetadata(class_names=NAMES, image_shape=SHAPE, module="small_models")
        (left := tmp_path / ".model.0123abcd").mkdir()  # by a process that was killed
        save_model(getattr(small_models, model)(SHAPE, len(NAMES)), saved, metadata)
        assert not left.exists()
        directory = RunDirectory(folder / "run")
        directory.create(make_config("single", model=name), RunIdentity(study="own-layers", name="run", dataset=""))
        run = client.create_run(experiment)
        model_id = log_model(client, run.info.run_id, saved)
        return check_model(client, Candidate(directory=directory, run=run), model_id, home=home)

    return call


def test_a_layer_of_the_run_s_own_module_is_loaded(check, rampline_home: Path) -> None:
    found = check("with_own_layer", rampline_home / "runs" / "own-layers" / "e1")
    assert (found.passed, found.reason) == (True, "loaded from MLflow, it labels an image")


def test_a_lambda_is_refused_with_what_to_write(check, rampline_home: Path) -> None:
    found = check("with_lambda", rampline_home / "runs" / "own-layers" / "e2")
    assert not found.passed
    assert "its Lambda layer is code, which no model file may bring: write a layer class with @keras" in found.reason


def test_what_a_registry_names_alone_is_not_imported(check, rampline_home: Path, tmp_path: Path) -> None:
    for file in (rampline_home / "runs" / "own-layers").glob("*/*/config.json"):
        file.unlink()
    found = check("with_own_layer", tmp_path / "elsewhere")
    assert not found.passed
    assert "the model needs code of the module small_models, which no run of this home names" in found.reason
