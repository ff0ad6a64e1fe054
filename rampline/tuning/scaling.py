"""What the learning rate becomes when the tuner changes the global batch."""

from __future__ import annotations

import math
from typing import Any

from rampline.config import RunConfig


def scaled_learning_rate(before: RunConfig, after: RunConfig) -> dict[str, Any]:
    """Settings that scale the peak to the global batch of `after`; empty where nothing is to be changed.

    For `sgd` the peak grows linearly with the global batch (Goyal et al. 2017, arXiv:1706.02677), for `adam`, `adamw`
    and `rmsprop` with its square root (Krizhevsky 2014, arXiv:1404.5997; Malladi et al. 2022, arXiv:2205.10287, derive
    it for Adam and RMSprop). Malladi et al. change the betas and epsilon as well: that is left to the user. A run with
    `learning_rate.scale_with: global_batch` scales its peak itself, so nothing is scaled here a second time. The floor
    is lowered where it would be above the new peak.
    """
    rate = before.learning_rate
    factor = after.global_batch_size / before.global_batch_size
    if factor == 1 or rate.scale_with == "global_batch":
        return {}
    peak = _rounded(rate.peak * (factor if before.optimizer.name == "sgd" else math.sqrt(factor)))
    floor = {"learning_rate.floor": peak} if rate.floor > peak else {}
    return {"learning_rate.peak": peak, **floor}


def describe_rule(config: RunConfig) -> str:
    """By what rule the peak follows the global batch, in words."""
    if config.learning_rate.scale_with == "global_batch":
        return "linearly with the batch, by the run's own learning_rate.scale_with"
    name = config.optimizer.name
    return f"linearly with the batch ({name})" if name == "sgd" else f"with the square root of the batch ({name})"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
