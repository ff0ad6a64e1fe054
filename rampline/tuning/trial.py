"""A trial: one change of settings, what is run for it, and how it came out. No TensorFlow.

Groups of settings are tried one after the other, from the run's own settings on.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rampline.config import RunConfig, apply_overrides, flatten, from_dict, to_dict
from rampline.config.formats import write_value
from rampline.errors import ConfigError
from rampline.explain.replica import replica_config
from rampline.files import JsonData

# Below this a difference is not worth a setting, however well it is measured.
SMALLEST_GAIN = 0.02
# Of two equally fast settings with 5 % of noise, fewer than one comparison in twenty passes then (simulated: 3-4 %).
DEVIATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Rounds(JsonData):
    """Images per second of a candidate and of what it is compared with, measured in turns in one process.

    Attributes:
        before: (rounds,) of the settings it is compared with.
        after: (rounds,) of the candidate.
        memory_bytes: peak memory of the process or GPU when the candidate was measured; `None` where unknown.
        free_bytes: memory that its machine had left before; `None` where it was measured on a GPU.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    memory_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def ratios(self) -> tuple[float, ...]:
        """After divided by before, round by round."""
        return tuple(after / before for before, after in zip(self.before, self.after, strict=True))

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return statistics.median(self.ratios)

    @property
    def noise(self) -> float:
        """`DEVIATIONS` times the median distance of the ratios from their median: two rounds of five that the machine
        disturbed, to either side, do not change it much.
        """
        return DEVIATIONS * statistics.median(abs(ratio - self.ratio) for ratio in self.ratios)

    @property
    def is_gain(self) -> bool:
        """Whether the candidate is faster by more than the noise, and by a share worth having."""
        return self.ratio - 1 > max(self.noise, SMALLEST_GAIN)

    def figures(self) -> dict[str, float | None]:
        """By the names that they have in MLflow."""
        speeds = {"images_per_second": statistics.median(self.after)}
        speeds |= {"images_per_second_before": statistics.median(self.before)}
        return {**speeds, "ratio": self.ratio, "ratio_noise": self.noise}

    def __str__(self) -> str:
        """`x 1.12 (1.10 to 1.13)`: the median, the smallest and the largest of the rounds."""
        return f"x {self.ratio:.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})"


MEASURED, DOES_NOT_FIT, FAILED, NOT_TRIED = "measured", "does not fit", "failed", "not tried"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One candidate and its outcome.

    Attributes:
        group: what was searched, such as `batch`.
        changes: settings by dotted key, against the run as it was then.
        status: one of this module's four.
        reason: why it was not measured, for the user.
        rounds: the figures, where it was.
    """

    group: str
    changes: Mapping[str, Any]
    status: str = NOT_TRIED
    reason: str = ""
    rounds: Rounds | None = None

    @property
    def key(self) -> str:
        """The setting that is searched; what follows from it is in `changes`, too."""
        return next(iter(self.changes))

    @property
    def label(self) -> str:
        """`batch.size=64`; what follows from a change is left out."""
        return f"{self.key}={write_value(self.changes[self.key])}"

    @property
    def ratio(self) -> float:
        """Speed against the settings before; 0 where it was not measured."""
        return self.rounds.ratio if self.rounds else 0.0

    def __str__(self) -> str:
        """`xla=true: x 1.12 (1.10 to 1.13)`, or why there is no figure."""
        if self.rounds is None:
            return f"{self.label}: {self.status}: {self.reason}"
        return f"{self.label}: {self.rounds}{'' if self.rounds.is_gain else ', no gain'}"


def with_changes(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """`config` with settings by dotted key.

    Raises:
        ConfigError: when they are not allowed together.
    """
    # A bare text would be read as YAML, where `off` is false.
    quoted = {key: json.dumps(value) if isinstance(value, str) else value for key, value in changes.items()}
    return from_dict(apply_overrides(to_dict(config), quoted))


def config_to_measure(config: RunConfig) -> RunConfig:
    """The run as one process can measure it, from fresh weights: its speed does not depend on them.

    Of a run in several processes (`multi_worker`, `parameter_server`) that is one replica with its share of the batch.
    """
    if config.strategy in ("multi_worker", "parameter_server"):
        return replica_config(config)
    model = dataclasses.replace(config.model, weights="none")
    return dataclasses.replace(config, model=model, log_examples=False, profile=False)


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
    proposed: Iterable[dict[str, Any]] = [{"xla": not config.xla}]
    if group == BATCH:
        proposed = _batches(config, limits)
    elif group == PRECISION:
        # The processor has no float16 arithmetic to gain from.
        proposed = [{"precision": f"mixed_{name}"} for name in ("bfloat16", "float16")[: 1 + limits.has_gpu]]
    return [
        changes
        for changes in proposed
        if any(own[key] != value for key, value in changes.items()) and _is_allowed(config, changes)
    ]


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
