"""What is tried, and in which order: one group of settings after the other, from the run's own settings on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rampline.config import RunConfig, flatten
from rampline.errors import ConfigError
from rampline.tuning.trial import with_changes


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
    peak = rate.peak * (factor if before.optimizer.name == "sgd" else math.sqrt(factor))
    peak = float(f"{peak:.4g}")
    floor = {"learning_rate.floor": peak} if rate.floor > peak else {}
    return {"learning_rate.peak": peak, **floor}


def describe_rule(config: RunConfig) -> str:
    """By what rule the peak follows the global batch, in words."""
    if config.learning_rate.scale_with == "global_batch":
        return "linearly with the batch, by the run's own learning_rate.scale_with"
    name = config.optimizer.name
    return f"linearly with the batch ({name})" if name == "sgd" else f"with the square root of the batch ({name})"


BATCH, PRECISION, XLA = "batch", "precision", "xla"
# A batch of this many doublings is beyond what any step gains from.
DOUBLINGS = 12


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the user allows, and what the machine and the data do.

    Attributes:
        train_examples: of the training split; a global batch has no more.
        has_gpu: whether the run's replicas are on GPUs.
        max_batch: largest per-replica batch that is tried; `None` for no limit but memory and time.
        allow_batch: whether a faster batch is adopted, or only shown.
        allow_precision: the same for the precision.
    """

    train_examples: int
    has_gpu: bool = False
    max_batch: int | None = None
    allow_batch: bool = False
    allow_precision: bool = False

    def adopts(self, group: str) -> bool:
        """Whether the recommendation takes what a group finds: XLA leaves the training as it is, but for rounding."""
        return {BATCH: self.allow_batch, PRECISION: self.allow_precision, XLA: True}[group]


def order_groups(limits: Limits) -> tuple[str, ...]:
    """What may be adopted comes first, and XLA on a processor last: it makes convolutions slower there."""
    return tuple(
        sorted(
            (BATCH, PRECISION, XLA), key=lambda group: not limits.adopts(group) or (group == XLA and not limits.has_gpu)
        )
    )


def candidates(group: str, config: RunConfig, limits: Limits) -> list[dict[str, Any]]:
    """The changes of a group that are allowed for `config`, and that it does not have already."""
    own = flatten(config)
    proposed = {BATCH: _batches, PRECISION: _precisions, XLA: _xla}[group](config, limits)
    return [
        changes
        for changes in proposed
        if any(own[key] != value for key, value in changes.items()) and _is_allowed(config, changes)
    ]


def _xla(config: RunConfig, limits: Limits) -> Iterable[dict[str, Any]]:
    return ({"xla": not config.xla},)


def _precisions(config: RunConfig, limits: Limits) -> Iterable[dict[str, Any]]:
    # The processor has no float16 arithmetic to gain from.
    return ({"precision": name} for name in ("mixed_bfloat16", *(["mixed_float16"] if limits.has_gpu else [])))


def _batches(config: RunConfig, limits: Limits) -> Iterable[dict[str, Any]]:
    """Twice, four times … the per-replica batch, while a global batch has its examples; half of it last."""
    own, replicas = config.per_replica_batch_size, config.num_replicas_in_sync
    most = min(limits.max_batch or limits.train_examples, limits.train_examples // replicas)
    sizes = [own * 2**power for power in range(1, DOUBLINGS) if own * 2**power <= most]
    for size in [*sizes, own // 2]:
        batch = {"batch.size": size if config.batch.per == "replica" else size * replicas}
        if size and _is_allowed(config, batch):
            yield batch | scaled_learning_rate(config, with_changes(config, batch))


def _is_allowed(config: RunConfig, changes: Mapping[str, Any]) -> bool:
    try:
        with_changes(config, changes)
    except ConfigError:
        return False
    return True
