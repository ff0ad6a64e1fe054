"""What can be said of a run's `model.name` and `model.weights` without TensorFlow, before anything is prepared."""

from __future__ import annotations

import ast
import functools
from importlib.util import find_spec
from pathlib import Path

from rampline.config.sections import OWN_NETWORKS
from rampline.errors import ConfigError
from rampline.imports import locate_own

# What these name is never a checkpoint, whatever folders there are.
FRESH_WEIGHTS = ("none", "imagenet")


def check_name(name: str) -> None:
    """Refuse a `model.name` that is no network of ours or Keras', and code that is not found; nothing is imported."""
    if ":" in name:
        if not locate_own(name, Path.cwd()):
            places = f"{Path.cwd()}, PYTHONPATH and what is installed"
            raise ConfigError(f"model.name={name!r} is not found: looked in {places}")
    elif name not in (*OWN_NETWORKS, *keras_applications()):
        known = ", ".join(OWN_NETWORKS)
        allowed = f"{known}, a keras.applications name, or package.module:function"
        raise ConfigError(f"model.name={name!r} is not known: it must be {allowed}")


def check_weights(weights: str) -> None:
    """Refuse `model.weights` that are not there, or a training from scratch would take their place."""
    path = Path(weights)
    is_there = path.is_file() if weights.endswith(".h5") else path.is_dir()
    if weights not in FRESH_WEIGHTS and not is_there:
        allowed = "none, imagenet, a .h5 weight file, the folder of a checkpoint, or run:NAME"
        raise ConfigError(f"model.weights={weights!r} cannot be found: it must be {allowed}")


@functools.cache
def keras_applications() -> frozenset[str]:
    """The networks of `keras.applications`, as the file says that exports them: importing it takes seconds."""
    spec = find_spec("keras")
    if spec is None or spec.origin is None:
        raise ConfigError("Keras is not installed: `rampline doctor` says more")
    source = (Path(spec.origin).parent / "applications" / "__init__.py").read_text(encoding="utf-8")
    imported = (node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom))
    names = {alias.asname or alias.name for node in imported for alias in node.names}
    return frozenset(name for name in names if name[0].isupper())
