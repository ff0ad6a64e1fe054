"""Checkpoints by their paths: a training restores the newest whole one."""

from pathlib import Path

import keras

from rampline.record.checkpoints import Progress
from rampline.training.checkpoint import _assign_all, read_checkpoint


def load_checkpoint(path: Path, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Progress:
    """Set all variables to those of a checkpoint."""
    progress, arrays = read_checkpoint(path)
    _assign_all(model, optimizer, arrays, path)
    return progress
