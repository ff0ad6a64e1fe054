"""How far a training is, and which of its checkpoints are complete, last, best and surplus. No TensorFlow."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rampline.errors import ConfigError
from rampline.files import JsonData, read_json, refuse_newer

# A checkpoint of a run: that of its best epoch, or the newest one.
Which = Literal["best", "last"]
PROGRESS = "progress.json"
VERSION = 2


class CheckpointDamaged(ConfigError):
    """What a checkpoint holds is not what was written.

    Attributes:
        path: the checkpoint.
        reason: what is wrong with it, a few words.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"checkpoint {path} is damaged: {reason}")
        self.path, self.reason = path, reason


@dataclass(frozen=True, kw_only=True)
class Progress(JsonData):
    """How far a training is: what a continued run needs beside its variables.

    Attributes:
        step: updates made; with the seed it fixes the next example.
        epoch: epochs completed.
        epoch_sums: loss sum, correct, examples, penalty sum and the state of other metrics, of the running epoch; zeros
            at an epoch's end.
        epoch_seconds: training time of the running epoch.
        epoch_input_wait_seconds: time of it that steps waited for their batch; `None` where that cannot be measured.
        elapsed_seconds: since training began, over all attempts.
        train_seconds: sum over completed epochs.
        wall_seconds: with start-up, over all attempts.
        best_epoch, best_step, best_val_accuracy: the best epoch so far; 0 and -1 before the first.
        best_loss_epoch, best_val_loss: the first epoch with the lowest validation loss so far; 0 and `None` before it.
        metrics: of the last completed epoch.
    """

    step: int = 0
    epoch: int = 0
    epoch_sums: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    epoch_seconds: float = 0.0
    epoch_input_wait_seconds: float | None = 0.0
    elapsed_seconds: float = 0.0
    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    best_epoch: int = 0
    best_step: int = 0
    best_val_accuracy: float = -1.0
    best_loss_epoch: int = 0
    best_val_loss: float | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Manifest(JsonData):
    """What `progress.json` says of its checkpoint.

    Attributes:
        variables_sha256: hex digest of the file of variables.
        progress: how far the training was.
        model_variables: paths of the model's variables, in the order of the file.
        network: what the model was made of, see `rampline.training.checkpoint`; empty where nobody knows.
    """

    variables_sha256: str
    progress: Progress
    model_variables: tuple[str, ...]
    network: str = ""


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write `path/progress.json` with a checksum over all it says.

    Every version has this envelope, with `version` in the content: a damaged number is not taken for a newer version.
    """
    content = json.loads(json.dumps({"version": VERSION, **asdict(manifest)}))
    text = json.dumps({"checksum": _checksum(content), "content": content}, indent=1)
    (path / PROGRESS).write_text(text + "\n", encoding="utf-8")


def read_manifest(path: Path) -> Manifest:
    """Read and verify `path/progress.json`.

    Raises:
        CheckpointDamaged: when it is missing or says anything but what was written.
        ConfigError: when a newer rampline has written it.
    """
    try:
        whole = read_json(path / PROGRESS)
    except OSError as error:
        raise CheckpointDamaged(path, f"{PROGRESS}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointDamaged(path, f"{PROGRESS} is no JSON: {error}") from error
    if not isinstance(whole, dict) or not whole.keys() == {"checksum", "content"}:
        raise CheckpointDamaged(path, f"{PROGRESS} has no checksum")
    if whole["checksum"] != _checksum(whole["content"]):
        raise CheckpointDamaged(path, f"{PROGRESS} does not have the checksum it was written with")
    try:
        refuse_newer(path / PROGRESS, whole["content"], version=VERSION)
        manifest = Manifest.from_dict(whole["content"])
    except (AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise CheckpointDamaged(path, f"{PROGRESS} was written by another version: {reason}") from error
    sums = manifest.progress.epoch_sums
    # Earlier versions counted no penalties.
    return replace(manifest, progress=replace(manifest.progress, epoch_sums=sums + (0.0,) * (4 - len(sums))))


def read_progress(path: Path) -> Progress:
    """How far the training was when `path` was written.

    Raises:
        CheckpointDamaged, ConfigError: as `read_manifest`.
    """
    return read_manifest(path).progress


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of `step` is, if there is one."""
    return folder / f"step-{step:08d}"


def find_checkpoints(folder: Path) -> list[Path]:
    """Everything with the name of a checkpoint, whole or not, oldest first."""
    return sorted((path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)), key=step_of)


def list_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints that have all their parts, oldest first."""
    return [path for path in find_checkpoints(folder) if (path / PROGRESS).is_file()]


def last_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that has all its parts."""
    return next(reversed(list_checkpoints(folder)), None)


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the best validation accuracy, as the newest readable one remembers it; else the newest.

    Raises:
        ConfigError: when the best one is gone: no other has the accuracy that the run tells.
    """
    for path in reversed(list_checkpoints(folder)):
        progress = _progress_if_readable(path)
        if progress and is_best_missing(folder, progress):
            best = f"{checkpoint_path(folder, progress.best_step)} (epoch {progress.best_epoch})"
            raise ConfigError(
                f"the best checkpoint of the run, {best}, is missing: put it back, or train the run again"
            )
        if progress:
            return checkpoint_path(folder, progress.best_step) if progress.best_step else path
    return last_checkpoint(folder)


def is_best_missing(folder: Path, progress: Progress) -> bool:
    """Whether the checkpoint that was the best so far is gone."""
    return bool(progress.best_step) and not checkpoint_path(folder, progress.best_step).is_dir()


def without_best(progress: Progress) -> Progress:
    """`progress` of a training whose best checkpoint is gone: what can be the best now is itself, or a later epoch."""
    is_end_of_epoch = progress.epoch > 0 and not progress.epoch_sums[2]
    accuracy = progress.metrics.get("val_accuracy") if is_end_of_epoch else None
    if accuracy is None:
        return replace(progress, best_epoch=0, best_step=0, best_val_accuracy=-1.0)
    return replace(progress, best_epoch=progress.epoch, best_step=progress.step, best_val_accuracy=accuracy)


def surplus_checkpoints(last: Path, keep: int) -> list[Path]:
    """What need not be kept beside `last`: all but the best and the `keep` newest readable ones before it.

    A checkpoint of a later step is surplus too: training came back to `last` because it is damaged.
    """
    best = checkpoint_path(last.parent, read_progress(last).best_step)
    others = [path for path in find_checkpoints(last.parent) if path not in (last, best)]
    spare = [path for path in others if step_of(path) < step_of(last) and _progress_if_readable(path)]
    kept = spare[max(len(spare) - keep, 0) :]
    return [path for path in others if path not in kept]


def step_of(path: Path) -> int:
    """Updates that a checkpoint holds, by its name."""
    return int(path.name.removeprefix("step-"))


def _progress_if_readable(path: Path) -> Progress | None:
    try:
        return read_progress(path)
    except CheckpointDamaged:
        return None


def _checksum(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
