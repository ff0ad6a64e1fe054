"""A model that the evaluation process saves and that is logged without TensorFlow is one that MLflow loads."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import mlflow.artifacts
import numpy as np
import pytest
import yaml
from mlflow.models import Model

from rampline.tracking.reconciliation import log_model
from rampline.training.saved_model import ModelMetadata

# Trains nothing: a normalisation with moving statistics and a dense layer are enough to tell one set of weights.
BUILD_THEN_LOAD = """
import json, sys
from pathlib import Path
import numpy as np, keras
from rampline.training.saved_model import ModelMetadata, save_model
folder, uri, metadata = sys.argv[1:]
inputs = keras.Input((8, 8, 1), dtype="uint8")
x = keras.layers.BatchNormalization()(keras.layers.Rescaling(1 / 255)(inputs))
model = keras.Model(inputs, keras.layers.Dense(2, dtype="float32")(keras.layers.Flatten()(x)))
save_model(model, Path(folder), ModelMetadata(**json.loads(metadata)))
from mlflow.utils import requirements_utils
print("saved, having listed the files of packages:", requirements_utils._MODULES_TO_PACKAGES, flush=True)
run_id = input()
images = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 1), dtype=np.uint8)
expected = model.predict(images, verbose=0)
import mlflow
mlflow.set_tracking_uri(uri)
keras_model = mlflow.keras.load_model(f"runs:/{run_id}/model")
pyfunc_model = mlflow.pyfunc.load_model(f"runs:/{run_id}/model")
print(json.dumps({
    "keras": float(np.abs(keras_model.predict(images, verbose=0) - expected).max()),
    "pyfunc": float(np.abs(pyfunc_model.predict(images) - expected).max()),
    "dtype": str(pyfunc_model.predict(images).dtype),
}))
"""


@pytest.mark.slow
@pytest.mark.long
def test_the_model_predicts_the_same_after_mlflow_loads_it(client, deliver, make_run_directory):
    directory = make_run_directory()
    run_id = deliver(directory)
    metadata = ModelMetadata(class_names=("cat", "dog"), image_shape=(8, 8, 1), source="digits", fingerprint="0123")
    arguments = str(directory.model), client.tracking_uri, json.dumps(dataclasses.asdict(metadata))
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD_THEN_LOAD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "saved, having listed the files of packages: None\n"
    model_id = log_model(client, run_id, directory.model)
    assert log_model(client, run_id, directory.model) == model_id
    assert not list(directory.path.glob(".model*"))
    printed, errors = process.communicate(run_id + "\n", timeout=120)
    assert process.returncode == 0, errors
    assert json.loads(printed.splitlines()[-1]) == {"keras": 0.0, "pyfunc": 0.0, "dtype": "float32"}
    assert "mismatch" not in errors

    logged = client.get_logged_model(model_id)
    assert (logged.name, logged.source_run_id, logged.status) == ("model", run_id, "READY")
    folder = Path(mlflow.artifacts.download_artifacts(logged.artifact_location))
    assert ModelMetadata.read(folder) == metadata
    signature = Model.load(folder).signature
    assert signature is not None
    assert signature.outputs is not None
    images, logits = signature.inputs.inputs[0], signature.outputs.inputs[0]
    assert (images.type, images.shape) == (np.dtype("uint8"), (-1, 8, 8, 1))
    assert (logits.type, logits.shape) == (np.dtype("float32"), (-1, 2))
    requirements = (folder / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in requirements] == ["keras", "tensorflow", "numpy", "mlflow"]
    assert yaml.safe_load((folder / "python_env.yaml").read_text())["dependencies"] == ["-r requirements.txt"]
