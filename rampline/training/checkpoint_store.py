"""A checkpoint on the disk: arrays and progress, complete or absent, verified when read. No TensorFlow."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np

from rampline.errors import NO_SPACE, RunFailed
from rampline.files import complete_directory, remove
from rampline.training.progress import (
    CheckpointDamaged,
    Manifest,
    Progress,
    checkpoint_path,
    find_checkpoints,
    read_manifest,
    surplus_checkpoints,
    write_manifest,
)

VARIABLES = "variables.npz"


def write_checkpoint(
    folder: Path, progress: Progress, arrays: dict[str, np.ndarray], names: tuple[str, ...], *, keep: int
) -> Path:
    """Write `folder/step-…`, then remove all but this one, the best and the `keep` newest others.

    Without space for it, what `keep` has asked for is removed first, and the writing tried once more.

    Args:
        folder: where the checkpoints of the run are.
        progress: how far the training is; names the checkpoint by its step.
        arrays: `model/NUMBER` for each of the model's variables, and any others.
        names: of the model's variables, in their order.
        keep: checkpoints to keep besides the last and the best.

    Raises:
        RunFailed: when it cannot be written; nothing of it is left then, and the last and the best before it are whole.
    """
    path = checkpoint_path(folder, progress.step)
    try:
        try:
            _write(path, progress, arrays, names)
        except OSError as error:
            if error.errno not in NO_SPACE or not _drop_spares(folder):
                raise
            _write(path, progress, arrays, names)
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


def _write(path: Path, progress: Progress, arrays: dict[str, np.ndarray], names: tuple[str, ...]) -> None:
    with complete_directory(path, replace=True) as aside:
        np.savez(aside / VARIABLES, allow_pickle=False, **arrays)
        with (aside / VARIABLES).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        write_manifest(aside, Manifest(variables_sha256=digest, progress=progress, model_variables=names))


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
