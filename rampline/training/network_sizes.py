"""How large networks are: parameters, and the memory that an image takes in training. A job: it builds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from rampline.config import DataConfig, ModelConfig
from rampline.config.choices import MODELS
from rampline.training.models import GUESSED_CLASSES, make_model


def measure_networks(_folder: Path, names: list[str], image_size: int | None) -> list[dict[str, Any]]:
    """`{"name", "image_size", "parameters", "bytes_per_image"}` of each network, at its own image size by default.

    Of a network of `keras.applications` it is the backbone, without the head that Rampline gives it.
    """
    return [_measure(name, image_size) for name in names]


def _measure(name: str, image_size: int | None) -> dict[str, Any]:
    if name in MODELS:
        size = image_size or DataConfig().image_size
        model = make_model(ModelConfig(name=name), image_shape=(size, size, 3), classes=GUESSED_CLASSES)
    else:
        make = getattr(keras.applications, name)
        # The size that its weights were trained with is that of the whole network.
        size = image_size or make(weights=None).input_shape[1]
        model = make(weights=None, include_top=False, input_shape=(size, size, 3))
    keras.backend.clear_session()
    return {
        "name": name,
        "image_size": size,
        "parameters": model.count_params(),
        "bytes_per_image": activation_bytes(model),
    }


def activation_bytes(model: keras.Model) -> int:
    """Bytes of what all layers put out for one image in float32: what the backward pass needs again.

    An estimate: operations that are put together keep less, convolutions need room to work in.
    """
    outputs = [output for layer in model.layers for output in keras.tree.flatten(layer.output)]
    return sum(int(np.prod(output.shape[1:])) * np.dtype(output.dtype).itemsize for output in outputs)
