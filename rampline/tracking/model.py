"""A trained Keras model as an MLflow model, written without TensorFlow in a few milliseconds.

The layout is that of `mlflow.keras.save_model` (`data/model.keras`, flavour `keras`), so that `mlflow.keras.load_model`
and `mlflow.pyfunc.load_model` read it; a test holds that. Going through `mlflow.keras.log_model` would load TensorFlow
and the model first, 12 s and more for what is the copy of a file.

Its MLmodel says under `metadata` what images must be made into and what the answers mean, so that whoever has the model
needs neither the run directory nor the data: `rampline.registry.prediction` reads it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from mlflow import pyfunc
from mlflow.entities import LoggedModelOutput, LoggedModelStatus
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.tracking import MlflowClient
from mlflow.types import Schema, TensorSpec

from rampline.data.address import RESIZE
from rampline.data.dataset import PreparedDataset
from rampline.errors import InputError

MODEL_NAME = "model"
DIGEST_TAG, METADATA_TAG = "rampline.sha256", "rampline.metadata_sha256"


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What the users of a model must know of the data it was trained with.

    Attributes:
        class_names: name of every label; logit `i` is `class_names[i]`.
        image_shape: (height, width, channels) of its uint8 images.
        source: `data.source` of its training data.
        fingerprint: of that source.
        resize: how images are brought to that shape.
        module: with the code of its own layers, which their file does not hold; empty for a network of ours or Keras'.
    """

    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    source: str = ""
    fingerprint: str = ""
    resize: str = RESIZE
    module: str = ""

    @classmethod
    def of(cls, dataset: PreparedDataset, name: str) -> ModelMetadata:
        """Of a model that is trained on this dataset; `name` is its `model.name`."""
        return cls(
            module=name.partition(":")[0] if ":" in name else "",
            class_names=dataset.class_names,
            image_shape=dataset.image_shape,
            source=dataset.source,
            fingerprint=dataset.fingerprint,
        )

    def to_dict(self) -> dict[str, Any]:
        """As it stands in MLmodel."""
        data = {"source": self.source, "fingerprint": self.fingerprint, "resize": self.resize}
        own = {"module": self.module} if self.module else {}
        return {"class_names": list(self.class_names), "image_shape": list(self.image_shape), "data": data} | own

    @classmethod
    def read(cls, folder: Path) -> ModelMetadata:
        """From the folder of a downloaded model.

        Raises:
            InputError: when it has none, or needs images that are made in another way.
        """
        try:
            content: dict[str, Any] = Model.load(folder).metadata or {}
            shape = tuple(int(side) for side in content["image_shape"])
            names = tuple(map(str, content["class_names"]))
            module = str(content.get("module", ""))
            made = cls(class_names=names, image_shape=shape, module=module, **content["data"])  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, MlflowException) as error:
            raise InputError("the model does not say its classes and image size: Rampline has not logged it") from error
        if made.resize != RESIZE or len(made.image_shape) != 3:
            raise InputError(f"the model needs images of {made.image_shape}, resized by {made.resize!r}")
        return made


def log_model(client: MlflowClient, run_id: str, model_file: Path, metadata: ModelMetadata) -> str:
    """Log a `.keras` file as the run's model (`runs:/RUN_ID/model`); the same file is not logged twice.

    Args:
        client: where to.
        run_id: the run, in any state.
        model_file: what `keras.Model.save` wrote.
        metadata: what its users must know; it tells the model's shapes.

    Returns:
        Id of the MLflow model.
    """
    with open(model_file, "rb") as file:
        tags = {DIGEST_TAG: hashlib.file_digest(file, "sha256").hexdigest()}
    tags[METADATA_TAG] = hashlib.sha256(json.dumps(metadata.to_dict(), sort_keys=True).encode()).hexdigest()
    run = client.get_run(run_id)
    for output in run.outputs.model_outputs if run.outputs else []:
        logged = client.get_logged_model(output.model_id)
        if tags.items() <= logged.tags.items() and logged.status == LoggedModelStatus.READY:
            return logged.model_id
    model = client.create_logged_model(
        run.info.experiment_id,
        name=MODEL_NAME,
        source_run_id=run_id,
        tags=tags,
        params=run.data.params,
        model_type="keras",
    )
    with tempfile.TemporaryDirectory() as folder:
        mlflow_model = Model(
            artifact_path=model.artifact_location,
            run_id=run_id,
            model_id=model.model_id,
            metadata=metadata.to_dict(),
            signature=_signature(metadata.image_shape, len(metadata.class_names)),
        )
        _write(mlflow_model, model_file, Path(folder))
        client.log_model_artifacts(model.model_id, folder)
    client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=0)])
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return model.model_id


def _signature(image_shape: tuple[int, int, int], classes: int) -> ModelSignature:
    """(batch, height, width, channels) uint8 → (batch, classes) float32: what every model of ours takes and gives."""
    images = TensorSpec(np.dtype(np.uint8), (-1, *image_shape))
    logits = TensorSpec(np.dtype(np.float32), (-1, classes))
    return ModelSignature(inputs=Schema([images]), outputs=Schema([logits]))


def _write(model: Model, model_file: Path, folder: Path) -> None:
    data = folder / "data"
    data.mkdir()
    (data / "keras_module.txt").write_text("keras")
    shutil.copyfile(model_file, data / "model.keras")
    keras_version = _keras_version(model_file)
    model.add_flavor(
        "keras", data="data", keras_version=keras_version, keras_backend="tensorflow", save_exported_model=False
    )
    pyfunc.add_to_model(model, loader_module="mlflow.keras", conda_env="conda.yaml", python_env="python_env.yaml")
    model.model_size_bytes = model_file.stat().st_size
    _write_requirements(folder, keras_version)
    model.save(str(folder / "MLmodel"))


def _write_requirements(folder: Path, keras_version: str) -> None:
    """The versions the model was made with, in the three forms that MLflow's tools look for."""
    python = platform.python_version()
    pinned = [f"keras=={keras_version}", *(f"{name}=={version(name)}" for name in ("tensorflow", "numpy", "mlflow"))]
    (folder / "requirements.txt").write_text("\n".join(pinned) + "\n")
    build = ["pip", "setuptools", "wheel"]
    python_env = {"python": python, "build_dependencies": build, "dependencies": ["-r requirements.txt"]}
    (folder / "python_env.yaml").write_text(yaml.safe_dump(python_env, sort_keys=False))
    conda = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": pinned}],
    }
    (folder / "conda.yaml").write_text(yaml.safe_dump(conda, sort_keys=False))


def _keras_version(model_file: Path) -> str:
    """The version that wrote the file, from the file itself."""
    with zipfile.ZipFile(model_file) as archive:
        return json.loads(archive.read("metadata.json"))["keras_version"]
