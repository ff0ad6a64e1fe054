"""How far a training is, and which of its checkpoints are complete, last and best. No TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rampline.files import read_json

PROGRESS = "progress.json"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is: what a continued run needs beside its variables.

    Attributes:
        step: updates made; with the seed it fixes the next example.
        epoch: epochs completed.
        epoch_sums: loss sum, correct, examples of the running epoch; zeros at an epoch's end.
        epoch_seconds: training time of the running epoch.
        elapsed_seconds: since training began, over all attempts.
        train_seconds: sum over completed epochs.
        wall_seconds: with start-up, over all attempts.
        best_epoch, best_step, best_val_accuracy: the best epoch so far; 0 and -1 before the first.
    """

    step: int = 0
    epoch: int = 0
    epoch_sums: tuple[float, float, float] = (0.0, 0.0, 0.0)
    epoch_seconds: float = 0.0
    elapsed_seconds: float = 0.0
    train_seconds: float = 0.0
    wall_seconds: float = 0.0
    best_epoch: int = 0
    best_step: int = 0
    best_val_accuracy: float = -1.0
    metrics: dict[str, float | None] = field(default_factory=dict)


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if (path / PROGRESS).is_file())


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    return next(reversed(list_checkpoints(folder)), None)


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the best validation accuracy, as the newest one remembers it; else the newest."""
    last = last_checkpoint(folder)
    best = folder / f"step-{read_progress(last).best_step:08d}" if last else None
    return best if best and best.is_dir() else last


def read_progress(path: Path) -> Progress:
    """How far the training was when `path` was written."""
    values = read_json(path / PROGRESS)["progress"]
    return Progress(**{**values, "epoch_sums": tuple(values["epoch_sums"])})
