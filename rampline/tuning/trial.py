"""A trial: one change of settings, what is run for it, and how it came out. No TensorFlow."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rampline.config import RunConfig, apply_overrides, from_dict, to_dict
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
    def before_median(self) -> float:
        """Images per second of what it is compared with."""
        return statistics.median(self.before)

    @property
    def after_median(self) -> float:
        """Images per second of the candidate."""
        return statistics.median(self.after)

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


def write_value(value: Any) -> str:
    """A setting as one writes it in a study."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def with_changes(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """`config` with settings by dotted key.

    Raises:
        ConfigError: when they are not allowed together.
    """
    plain = {key: value for key, value in changes.items() if not isinstance(value, str)}
    # A text would be read as YAML, where `off` is false.
    texts = {key: f'"{value}"' for key, value in changes.items() if isinstance(value, str)}
    return from_dict(apply_overrides(to_dict(config), plain | texts))


def config_to_measure(config: RunConfig) -> RunConfig:
    """The run as one process can measure it, from fresh weights: its speed does not depend on them.

    Of a run in several processes (`multi_worker`, `parameter_server`) that is one replica with its share of the batch.
    """
    if config.strategy in ("multi_worker", "parameter_server"):
        return replica_config(config)
    model = dataclasses.replace(config.model, weights="none")
    return dataclasses.replace(config, model=model, log_examples=False, profile=False)
