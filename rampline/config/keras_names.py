"""What Keras has by name, read from its files: importing it takes seconds, and settings are checked without it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rampline.config.setting import unknown_key
from rampline.errors import ConfigError

# The modules of the networks of `keras.applications`, and of the layers of `keras.layers` for images.
APPLICATIONS, IMAGE_LAYERS = "keras.src.applications.", "keras.src.layers.preprocessing.image_preprocessing."


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
