"""What a test of the comparison logs to MLflow in place of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """One child run to log: `epochs` holds (val_accuracy, images_per_second, learning_rate, elapsed_seconds).

    `curves` holds other metrics by name, a value per epoch.
    """

    name: str
    strategy: str = "single"
    engine: str = "loop"
    replicas: int = 1
    status: str = "FINISHED"
    epochs: Sequence[tuple[float, float, float, float]] = ()
    curves: Mapping[str, Sequence[float]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)


def there(value: T | None) -> T:
    """A section, say, that a comparison has."""
    assert value is not None
    return value
