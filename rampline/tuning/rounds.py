"""The figures of one trial: how much faster than the settings before, and whether that is more than noise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Below this a difference is not worth a setting, however well it is measured.
SMALLEST_GAIN = 0.02
# Of two equally fast contenders with 5 % of noise, fewer than one comparison in twenty passes then (simulated: 3-4 %).
DEVIATIONS = 3


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Images per second of a candidate and of what it is compared with, measured in turns in one process.

    Attributes:
        before: (rounds,) of the settings it is compared with.
        after: (rounds,) of the candidate.
        memory_bytes: peak memory of the process or GPU when the candidate was measured; `None` where unknown.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    memory_bytes: int | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Rounds:
        """From `dataclasses.asdict`, read back from JSON."""
        return cls(**{**values, "before": tuple(values["before"]), "after": tuple(values["after"])})

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
