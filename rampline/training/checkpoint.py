"""Checkpoints: complete or absent, independent of the strategy that wrote them.

One folder `step-00000042` per checkpoint with `variables.npz` (plain arrays, no pickle) and `progress.json`. Variables
are
stored in the model's own order, so a checkpoint of eight replicas loads into one.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from rampline.errors import ConfigError
from rampline.files import complete_directory, read_json
from rampline.training.progress import PROGRESS, Progress, best_checkpoint, list_checkpoints, read_progress

VARIABLES = "variables.npz"


def save_checkpoint(
    folder: Path, progress: Progress, model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> Path:
    """Write `folder/step-…` aside, sync, rename; then drop every checkpoint but this one and the best."""
    arrays = {f"model/{i:05d}": _value(v) for i, v in enumerate(model.variables)}
    arrays |= {f"optimizer/{i:05d}": _value(v) for i, v in enumerate(optimizer.variables)}
    path = folder / f"step-{progress.step:08d}"
    if path.exists():
        _drop(path)
    with complete_directory(path) as aside:
        np.savez(aside / VARIABLES, allow_pickle=False, **arrays)
        digest = hashlib.sha256((aside / VARIABLES).read_bytes()).hexdigest()
        names = [v.path for v in model.variables]
        content = {"sha256": digest, "progress": asdict(progress), "model_variables": names}
        (aside / PROGRESS).write_text(json.dumps(content, indent=1))
    for old in list_checkpoints(folder):
        if old != path and old != best_checkpoint(folder):
            _drop(old)
    return path


def drop_unfinished(folder: Path) -> None:
    """Remove what a killed process has left of checkpoints that it had not finished."""
    for path in [*folder.glob(".step-*"), *folder.glob("step-*")]:
        if path not in list_checkpoints(folder):
            shutil.rmtree(path)


def load_checkpoint(path: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Progress:
    """Set all variables to those of `path`.

    Raises:
        ConfigError: when the checkpoint is damaged or belongs to another model or optimizer.
    """
    arrays = _read_arrays(path)
    _assign(model.variables, _group(arrays, "model"), path)
    _assign(optimizer.variables, _group(arrays, "optimizer"), path)
    return read_progress(path)


def load_model_weights(path: Path, model: keras.Model) -> None:
    """Set the model's variables alone: the start of a fine-tune.

    Raises:
        ConfigError: when the checkpoint is damaged or belongs to another model.
    """
    _assign(model.variables, _group(_read_arrays(path), "model"), path)


def _drop(path: Path) -> None:
    # Its progress goes first: what a kill leaves of the folder is then no checkpoint.
    (path / PROGRESS).unlink(missing_ok=True)
    shutil.rmtree(path)


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    file = path / VARIABLES
    try:
        expected, content = read_json(path / PROGRESS)["sha256"], file.read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"checkpoint {path} is damaged: {error}") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise ConfigError(f"checkpoint {path} is damaged: {VARIABLES} does not have the checksum it was written with")
    with np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


def _group(arrays: dict[str, np.ndarray], group: str) -> list[np.ndarray]:
    return [arrays[key] for key in sorted(arrays) if key.startswith(f"{group}/")]


def _assign(variables: Sequence[keras.Variable | tf.Variable], values: Sequence[np.ndarray], path: Path) -> None:
    shapes = [tuple(v.shape) for v in variables]
    if shapes != [value.shape for value in values]:
        raise ConfigError(f"checkpoint {path} does not fit this model: it has {len(values)} variables, or other shapes")
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.constant(value, variable.dtype))


def _value(variable: keras.Variable | tf.Variable) -> np.ndarray:
    return np.asarray(variable.value if isinstance(variable, keras.Variable) else variable)
