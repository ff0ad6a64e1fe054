"""A trained Keras model as MLflow saves it: the evaluation process does that, without MLflow's server.

Its MLmodel says under `metadata` what images must be made into and what the answers mean, so that whoever has the model
needs neither the run directory nor the data: `rampline.registry.prediction` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.types import Schema, TensorSpec
from mlflow.utils import environment

from rampline.data.address import RESIZE
from rampline.data.dataset import PreparedDataset
from rampline.errors import InputError
from rampline.files import ASIDE, complete_directory, delete_unfinished

if TYPE_CHECKING:
    import keras

# Named, because MLflow would load the model in another process to find them out: 13 s.
REQUIREMENTS = ("keras", "tensorflow", "numpy", "mlflow")
# They are versions of what is installed. To compare the two, MLflow lists the files of all packages for over a second
# (https://github.com/mlflow/mlflow/pull/10843).
environment.warn_dependency_requirement_mismatches = lambda model_requirements: None  # type: ignore[reportPrivateImportUsage]


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


def save_model(model: keras.Model, folder: Path, metadata: ModelMetadata) -> None:
    """Save a model with what its users must know, complete or not at all; in a process with TensorFlow."""
    from mlflow.keras import save_model as save_for_mlflow

    delete_unfinished(folder.parent, f"{folder.name}{ASIDE}")
    with complete_directory(folder, replace=True) as aside:
        save_for_mlflow(
            model,
            str(aside),
            signature=_signature(metadata.image_shape, len(metadata.class_names)),
            pip_requirements=[f"{name}=={version(name)}" for name in REQUIREMENTS],
            metadata=metadata.to_dict(),
        )


def _signature(image_shape: tuple[int, int, int], classes: int) -> ModelSignature:
    """(batch, height, width, channels) uint8 → (batch, classes) float32: what every model of ours takes and gives."""
    images = TensorSpec(np.dtype(np.uint8), (-1, *image_shape))
    logits = TensorSpec(np.dtype(np.float32), (-1, classes))
    return ModelSignature(inputs=Schema([images]), outputs=Schema([logits]))
