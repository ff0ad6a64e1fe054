"""Checkpoints of a training: verified before use, independent of the strategy that wrote them.

One folder `step-00000042` per checkpoint with `variables.npz` (plain arrays, no pickle) and `progress.json`.
Variables are stored in the model's own order, so a checkpoint of eight replicas loads into one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import warnings
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.errors import NO_SPACE, ConfigError, RunFailed
from rampline.files import complete_directory, remove, sha256_of
from rampline.record.checkpoints import (
    CheckpointDamaged,
    Manifest,
    Progress,
    checkpoint_path,
    find_checkpoints,
    read_manifest,
    surplus_checkpoints,
    write_manifest,
)
from rampline.training.batch_norm import mean_statistics, moving_variables, split_statistics
from rampline.training.optimizers import averages_of

VARIABLES = "variables.npz"
# As Keras names the state of every `SeedGenerator`: a variable of the model, and none of its weights.
SEED_STATE = "seed_generator_state"
# In the configuration of a model: where names of layers are, which tell what else the process has made; and what is
# another one in each process, or says nothing of what the model computes from its weights.
_NAMES = ("name", "keras_history", "input_layers", "output_layers")
_LEFT_OUT = ("seed", "build_config", "compile_config")


def write_checkpoint(
    folder: Path,
    progress: Progress,
    arrays: dict[str, np.ndarray],
    names: tuple[str, ...],
    *,
    network: str = "",
    keep: int,
) -> Path:
    """Write `folder/step-…`, then remove all but this one, the best and the `keep` newest others.

    Without space for it, what `keep` has asked for is removed first, and the writing tried once more.

    Args:
        arrays: `model/NUMBER` for each of the model's variables, and any others.
        names: of the model's variables, in their order.
        network: what the model is made of.

    Raises:
        RunFailed: when it cannot be written; nothing of it is left then, and the last and the best before it are whole.
    """
    path = checkpoint_path(folder, progress.step)
    try:
        try:
            _write(path, progress, arrays, names, network)
        except OSError as error:
            if error.errno not in NO_SPACE or not _drop_spares(folder):
                raise
            _write(path, progress, arrays, names, network)
    except OSError as error:
        raise RunFailed(f"checkpoint {path} cannot be written: {_describe(error, folder, arrays)}") from error
    for old in surplus_checkpoints(path, keep):
        remove(old)
    return path


def read_checkpoint(path: Path) -> tuple[Progress, dict[str, np.ndarray]]:
    """All that `write_checkpoint` was given.

    Raises:
        CheckpointDamaged: when anything is not as it was written.
    """
    manifest = read_manifest(path)
    try:
        with (path / VARIABLES).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != manifest.variables_sha256:
                raise CheckpointDamaged(path, f"{VARIABLES} does not have the checksum it was written with")
            file.seek(0)
            with np.load(file, allow_pickle=False) as content:
                arrays = dict(content)
    except OSError as error:
        raise CheckpointDamaged(path, f"{VARIABLES}: {error.strerror}") from error
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise CheckpointDamaged(path, f"{VARIABLES} holds no arrays: {error}") from error
    if len(group(arrays, "model")) != len(manifest.model_variables):
        raise CheckpointDamaged(path, f"{VARIABLES} does not hold the variables that progress.json names")
    return manifest.progress, arrays


def group(arrays: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    """The arrays `name/NUMBER` in the order of their numbers."""
    return [arrays[key] for key in sorted(arrays) if key.startswith(f"{name}/")]


def _write(path: Path, progress: Progress, arrays: dict[str, np.ndarray], names: tuple[str, ...], network: str) -> None:
    with complete_directory(path, replace=True) as aside:
        np.savez(aside / VARIABLES, allow_pickle=False, **arrays)
        manifest = Manifest(
            variables_sha256=sha256_of(aside / VARIABLES), progress=progress, model_variables=names, network=network
        )
        write_manifest(aside, manifest)


def _drop_spares(folder: Path) -> bool:
    """Remove all but the newest whole checkpoint and the best; whether there was any to remove."""
    last = next((path for path in reversed(find_checkpoints(folder)) if _is_whole(path)), None)
    spares = surplus_checkpoints(last, keep=0) if last else []
    for path in spares:
        remove(path)
    return bool(spares)


def _is_whole(path: Path) -> bool:
    try:
        read_checkpoint(path)
    except CheckpointDamaged:
        return False
    return True


def _describe(error: OSError, folder: Path, arrays: dict[str, np.ndarray]) -> str:
    reason = os.strerror(error.errno) if error.errno else str(error)
    if error.errno != errno.ENOSPC:
        return reason
    needed, free = sum(array.nbytes for array in arrays.values()), shutil.disk_usage(folder).free
    return f"{reason} ({needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free)"


STATISTICS = "replica_statistics"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What a training goes on from.

    Attributes:
        path: the checkpoint whose values the variables have now.
        replica_statistics: (replicas, total) moving statistics of each replica; `None` where all had the same.
        damaged: newer checkpoints that had to be left out.
    """

    path: Path
    progress: Progress
    replica_statistics: np.ndarray | None
    damaged: tuple[Path, ...]


def save_checkpoint(
    folder: Path,
    progress: Progress,
    model: keras.Model,
    optimizer: keras.optimizers.Optimizer,
    *,
    replica_statistics: np.ndarray | None = None,
    keep: int = 1,
) -> Path:
    """Write the checkpoint of a model and its optimizer, see `write_checkpoint`.

    Args:
        replica_statistics: (replicas, total) moving statistics of each replica, see `make_gather`. The model is then
            saved with their mean: what loads is the averaged model, and a resumed training has what each replica had.

    Raises:
        RunFailed: when it cannot be written; the last and the best before it are as they were.
    """
    arrays = _arrays(model, optimizer, replica_statistics)
    names = tuple(v.path for v in model.variables)
    return write_checkpoint(folder, progress, arrays, names, network=_network_of(model), keep=keep)


def restore_newest(
    folder: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer, *, warn: Callable[[str], None]
) -> Restored | None:
    """Set all variables to those of the newest whole checkpoint; `None` where there is no checkpoint.

    `warn` gets one line for each damaged checkpoint that is left out.

    Raises:
        RunFailed: when there are checkpoints and all are damaged.
        ConfigError: when the newest whole one belongs to another model or optimizer, or the model's code has changed.
    """
    damages: list[CheckpointDamaged] = []
    for path in reversed(find_checkpoints(folder)):
        try:
            progress, arrays = read_checkpoint(path)
        except CheckpointDamaged as damage:
            damages.append(damage)
            continue
        _assign_all(model, optimizer, arrays, path)
        for damage in damages:
            warn(f"checkpoint {damage.path} is damaged ({damage.reason}): going on from {path}")
        damaged, statistics = tuple(damage.path for damage in damages), arrays.get(STATISTICS)
        return Restored(path=path, progress=progress, replica_statistics=statistics, damaged=damaged)
    if damages:
        newest = f"{damages[0].path.name}: {damages[0].reason}"
        raise RunFailed(
            f"every checkpoint in {folder} is damaged ({newest}): to start the run over, delete that folder"
        )
    return None


def load_model_weights(path: Path, model: keras.Model) -> None:
    """Set the model's weights alone: the start of a fine-tune.

    The random numbers stay those of the model's own seed, and its dropout may be another.

    Raises:
        CheckpointDamaged: when it is not what was written.
        ConfigError: when it belongs to another model.
    """
    arrays, names = group(read_checkpoint(path)[1], "model"), read_manifest(path).model_variables
    values = [array for name, array in zip(names, arrays, strict=True) if not name.endswith(SEED_STATE)]
    _check_fit(model.weights, values, path)
    _assign(model.weights, values)
    _finalize(model)


def check_network(path: Path, model: keras.Model) -> None:
    """Refuse a model that computes something else from the same weights than the one that was saved.

    Raises:
        ConfigError: when it does, as far as its configuration tells: that has no code of layers and subclasses.
    """
    saved, found = read_manifest(path).network, _network_of(model)
    # Another Keras may describe the same layers otherwise.
    if saved and found and saved.split()[0] == found.split()[0] and saved != found:
        raise ConfigError(
            f"checkpoint {path} does not fit this model: the model's code has changed since, put it back or train anew"
        )


def _arrays(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, replica_statistics: np.ndarray | None
) -> dict[str, np.ndarray]:
    means = {}
    if replica_statistics is not None:
        parts = split_statistics(model, mean_statistics(replica_statistics))
        means = {id(v): part for v, part in zip(moving_variables(model), parts, strict=True)}
    of_model, of_optimizer = _saved_variables(model, optimizer)
    arrays = {f"model/{i:05d}": means.get(id(v), np.asarray(v.value)) for i, v in enumerate(of_model)}
    arrays |= {f"optimizer/{i:05d}": np.asarray(v.value) for i, v in enumerate(of_optimizer)}
    return arrays if replica_statistics is None else {**arrays, STATISTICS: replica_statistics}


def _assign_all(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, arrays: dict[str, np.ndarray], path: Path
) -> None:
    """Check everything, then assign: variables are never those of two trainings."""
    of_model, of_optimizer = _saved_variables(model, optimizer)
    pairs = [(of_model, group(arrays, "model")), (of_optimizer, group(arrays, "optimizer"))]
    for variables, values in pairs:
        _check_fit(variables, values, path)
    check_network(path, model)
    for variables, values in pairs:
        _assign(variables, values)
    _finalize(model)


def _saved_variables(
    model: keras.Model, optimizer: keras.optimizers.Optimizer
) -> tuple[list[keras.Variable], list[keras.Variable]]:
    """Those of the model and of the optimizer, with averages of weights in the place of the weights.

    What loads without an optimizer is the averaged model, and a resumed training has the weights.
    """
    pairs = averages_of(optimizer)
    place = {id(one): other for pair in pairs for one, other in (pair, pair[::-1])}
    return [place.get(id(v), v) for v in model.variables], [place.get(id(v), v) for v in optimizer.variables]


def _check_fit(variables: Sequence[keras.Variable], values: Sequence[np.ndarray], path: Path) -> None:
    shapes = [tuple(v.shape) for v in variables]
    if shapes != [value.shape for value in values]:
        raise ConfigError(f"checkpoint {path} does not fit this model: it has {len(values)} variables, or other shapes")


def _network_of(model: keras.Model) -> str:
    """The version of Keras, and a digest of the model's configuration; empty where the model has none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of a `lambda`, which is not loaded from here
            text = json.dumps(_unnamed(keras.saving.serialize_keras_object(model.get_config()), {}), sort_keys=True)
    except Exception:  # noqa: BLE001 - whatever a user's `get_config` raises, the training is to be saved
        return ""
    return f"{keras.__version__} {hashlib.sha256(text.encode()).hexdigest()}"


def _unnamed(value: Any, numbers: dict[str, int], key: str = "") -> Any:
    """A part of a configuration with a number for each name, in the order in which they come."""
    if isinstance(value, dict):
        # The bytes of a compiled `lambda` are not the same in each process. The name of a type is none of a layer.
        out = (*_LEFT_OUT, "config") if value.get("class_name") == "__lambda__" else _LEFT_OUT
        parts = {name: part for name, part in value.items() if name not in out}
        return {name: part if name == "dtype" else _unnamed(part, numbers, name) for name, part in parts.items()}
    if isinstance(value, list | tuple):
        return [_unnamed(part, numbers, key) for part in value]
    return numbers.setdefault(value, len(numbers)) if key in _NAMES and isinstance(value, str) else value


def _assign(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(tf.constant(value, variable.dtype))


def _finalize(model: keras.Model) -> None:
    """Let the layers that compute with constants made of their weights make them of the weights that they have now."""
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()
