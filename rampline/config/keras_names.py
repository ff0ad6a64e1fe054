"""Checks of what a study names: networks, weights and layers of Keras' and of the user's own.

What Keras has is read from its files: importing it takes seconds.
"""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rampline.config.choices import AUGMENTATIONS, MODELS
from rampline.config.sections import DataConfig
from rampline.config.setting import check, unknown_key
from rampline.errors import ConfigError
from rampline.imports import locate_own

# The modules of the networks of `keras.applications`, and of the layers of `keras.layers` for images.
APPLICATIONS, IMAGE_LAYERS = "keras.src.applications.", "keras.src.layers.preprocessing.image_preprocessing."

# What these name is never a checkpoint, whatever folders there are.
FRESH_WEIGHTS = ("none", "imagenet")
# Of the parameters of Keras' networks and layers, what Rampline decides.
GIVEN_TO_MODELS = ("include_top", "weights", "input_tensor", "input_shape", "pooling", "classes", "name")
GIVEN_TO_MODELS += ("classifier_activation", "weights_name")
GIVEN_TO_LAYERS = ("value_range", "seed", "data_format", "bounding_box_format", "name")


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a `model.name` that is no network of ours or Keras', and code that is not found; nothing is imported.

    Of a network of Keras', `model.options` must be its own.
    """
    applications = keras_names("applications", APPLICATIONS)
    if ":" in name:
        if not locate_own(name, Path.cwd()):
            places = f"{Path.cwd()}, PYTHONPATH and what is installed"
            places += "; a module is named without .py" if ".py:" in name else ""
            raise ConfigError(f"model.name={name!r} is not found: looked in {places}")
    elif name in applications:
        check_parameters(options, applications[name], name, "model.options", GIVEN_TO_MODELS)
    elif name not in MODELS:
        known = ", ".join(MODELS)
        near = difflib.get_close_matches(name, applications, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        allowed = f"{known}, a keras.applications name, or package.module:function{hint}"
        raise ConfigError(f"model.name={name!r} is not known: it must be {allowed}")


def check_weights(weights: str) -> None:
    """Refuse `model.weights` that are not there, or a training from scratch would take their place."""
    path = Path(weights)
    is_there = path.is_file() if weights.endswith((".h5", ".keras")) else path.is_dir()
    if weights not in FRESH_WEIGHTS and not is_there:
        allowed = "none, imagenet, a .h5 weight file, a .keras file, the folder of a checkpoint, or run:NAME"
        raise ConfigError(f"model.weights={weights!r} cannot be found: it must be {allowed}")


def check_augmentations(data: DataConfig) -> None:
    """Refuse a layer of `data.augment` that Keras does not have, and options that the layer does not have."""
    layers = keras_names("layers", IMAGE_LAYERS)
    for name, options in data.augmentations:
        if name in AUGMENTATIONS:
            check(not options, f"data.augment.{name}", options, f"left out for {name}, which takes none")
            continue
        if name == "AugMix":
            raise ConfigError(
                "data.augment: AugMix draws its operations in Python, once for all images: use RandAugment"
            )
        if name not in layers:
            known, otherwise = [*AUGMENTATIONS, *layers], "an image layer of keras.layers, such as RandomRotation, fits"
            raise ConfigError(unknown_key(name, known, "data.augment", otherwise))
        check_parameters(options, layers[name], name, f"data.augment.{name}", GIVEN_TO_LAYERS)


def check_parameters(
    options: Mapping[str, Any], module: str, function: str, section: str, given: Sequence[str]
) -> None:
    """Refuse options that a function or class of Keras' module does not have, or that are `given` by us."""
    known = [name for name in keras_parameters(module, function) if name not in given]
    for name in options:
        if name not in known:
            raise ConfigError(unknown_key(name, known, section))


@functools.cache
def keras_names(package: str, inside: str) -> dict[str, str]:
    """What a package such as `keras.layers` exports from modules `inside`, each with its module; nothing is imported.

    Importing it takes seconds.
    """
    imported = (node for node in _parse(f"keras.{package}").body if isinstance(node, ast.ImportFrom) and node.module)
    names = {alias.asname or alias.name: node.module or "" for node in imported for alias in node.names}
    return {name: module for name, module in names.items() if module.startswith(inside) and name[0].isupper()}


@functools.cache
def keras_parameters(module: str, name: str) -> tuple[str, ...]:
    """Parameters of a function, or of the `__init__` of a class, in a module of Keras'; nothing is imported."""
    body = {node.name: node for node in _parse(module).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    node = body[name]
    if isinstance(node, ast.ClassDef):
        methods = {inner.name: inner for inner in node.body if isinstance(inner, ast.FunctionDef)}
        node = methods["__init__"]
    arguments = node.args
    return tuple(one.arg for one in (*arguments.args, *arguments.kwonlyargs) if one.arg != "self")


def _parse(module: str) -> ast.Module:
    spec = find_spec("keras")
    if spec is None or spec.origin is None:
        raise ConfigError("Keras is not installed: `rampline doctor` says more")
    path = Path(spec.origin).parent.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
