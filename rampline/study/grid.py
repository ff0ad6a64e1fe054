"""The runs of a grid: every combination of its axes, or a sample of them.

Samples are the points of a Halton sequence (Halton 1960, doi:10.1007/BF01386213): each is far from those before it, and
more samples leave those before as they are.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rampline.config import merge
from rampline.config.formats import known_keys
from rampline.config.setting import check, unknown_key
from rampline.errors import ConfigError
from rampline.study.definition import GridKeys

PLACE = re.compile(r"\{([^{}]*)\}")
# A few lines of axes can ask for more runs than anybody trains, and than fit into memory.
MAX_RUNS = 1000
SAMPLE = "sample"
# Label of a value, and the settings that it stands for.
Value = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The values of an axis, by label."""

    settings: Mapping[str, Mapping[str, Any]]

    def at(self, share: float) -> Value:
        """The value at a share, below 1, of the way through them."""
        return list(self.settings.items())[int(share * len(self.settings))]


@dataclass(frozen=True, kw_only=True)
class Range:
    """The values of a setting from `low` to `high`, whole numbers where both bounds are; `log`: by their logarithms."""

    key: str
    low: float
    high: float
    log: bool

    def at(self, share: float) -> Value:
        """The value at a share of the way, with four digits."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = low + share * (high - low)
        value = math.exp(value) if self.log else value
        is_whole = isinstance(self.low, int) and isinstance(self.high, int)
        value = round(value) if is_whole else float(f"{value:.4g}")
        return str(value), _nest(self.key, value)


Axes = dict[str, Choices | Range]


def runs_of_grid(grid_name: str, grid: GridKeys) -> dict[str, dict[str, Any]]:
    """The runs of a grid by name, each as `runs:` would hold it; the last axis changes first.

    Raises:
        ConfigError: naming the key.
    """
    axes = _read_axes(grid.over)
    points = _combine(axes) if grid.samples is None else _sample(axes, grid.samples)
    own = [SAMPLE] if grid.samples else [*axes]  # what tells its runs apart
    template = grid.name or f"{grid_name}-{_whole(own)}"
    about = grid.description or ", ".join(f"{axis} {{{axis}}}" for axis in axes if grid.samples)
    runs: dict[str, dict[str, Any]] = {}
    for number, point in enumerate(points, 1):
        labels = {axis: label for axis, (label, _) in point.items()}
        labels |= {SAMPLE: str(number)} if grid.samples else {}
        name = _fill(template, labels)
        if name in runs:
            raise ConfigError(f"it makes two runs {name}: its name must hold {_whole(own)}")
        settings = grid.set
        for _, changes in point.values():
            settings = merge(settings, changes)
        runs[name] = {"set": settings, "description": _fill(about, labels), "train_examples": grid.train_examples}
    for name, figures in grid.published.items():
        if name not in runs:
            raise ConfigError(f"published names {name}, which it does not make: it makes {', '.join(runs)}")
        runs[name]["published"] = figures
    return runs


def _combine(axes: Axes) -> Iterator[dict[str, Value]]:
    listed = {axis: values.settings for axis, values in axes.items() if isinstance(values, Choices)}
    if ranges := [axis for axis in axes if axis not in listed]:
        raise ConfigError(f"over.{ranges[0]} is a range: samples must say how many points are sampled")
    number = math.prod(len(values) for values in listed.values())
    if number > MAX_RUNS:
        raise ConfigError(f"it makes {number} runs: at most {MAX_RUNS} are allowed")
    for values in itertools.product(*(settings.items() for settings in listed.values())):
        yield dict(zip(axes, values, strict=True))


def _sample(axes: Axes, samples: int) -> Iterator[dict[str, Value]]:
    """One point for each sample, but those once alone that have the same values."""
    from scipy.stats import qmc  # 1 s to import

    check(samples <= MAX_RUNS, "samples", samples, f"at most {MAX_RUNS}")
    sequence = qmc.Halton(len(axes), scramble=False)
    sequence.fast_forward(1)  # the first point is a corner
    known = set[tuple[str, ...]]()
    for shares in sequence.random(samples):
        point = {axis: values.at(float(share)) for (axis, values), share in zip(axes.items(), shares, strict=True)}
        labels = tuple(label for label, _ in point.values())
        if labels not in known:
            yield point
        known.add(labels)


def _read_axes(over: Any) -> Axes:
    if not isinstance(over, Mapping) or not over:
        raise ConfigError("over is missing: it must map each axis to its values")
    return {str(axis): _read_axis(str(axis), values) for axis, values in over.items()}


def _read_axis(axis: str, values: Any) -> Choices | Range:
    if not isinstance(values, Mapping | list) or not values:
        raise ConfigError(f"over.{axis} must be settings by label, or a list of values of a key, not {values!r}")
    if (
        isinstance(values, Mapping)
        and {*values} <= {"low", "high", "log"}
        and not any(isinstance(value, Mapping) for value in values.values())
    ):
        return _read_range(axis, values)
    settings = list(values.values()) if isinstance(values, Mapping) else [_nest(axis, value) for value in values]
    labels = [str(label).lower() for label in values]
    if len(set(labels)) < len(labels):
        raise ConfigError(f"over.{axis} has a value twice: {', '.join(labels)}")
    for label, changes in zip(labels, settings, strict=True):
        check(isinstance(changes, Mapping), f"over.{axis}.{label}", changes, "a mapping of keys")
    return Choices(settings=dict(zip(labels, settings, strict=True)))


def _read_range(axis: str, values: Mapping[Any, Any]) -> Range:
    for name in ("low", "high"):
        bound: Any = values.get(name)
        is_number = isinstance(bound, int | float) and not isinstance(bound, bool) and math.isfinite(bound)
        check(is_number, f"over.{axis}.{name}", bound, "a number: low and high are the ends of a range")
    low, high, log = values["low"], values["high"], values.get("log", False)
    check(isinstance(log, bool), f"over.{axis}.log", log, "true or false")
    check(low < high, f"over.{axis}.high", high, f"greater than low, {low}")
    check(low > 0 or not log, f"over.{axis}.low", low, "greater than 0 with log: true")
    found = Range(key=axis, low=low, high=high, log=log)
    found.at(0.0)  # a key that there is
    return found


def _nest(key: str, value: Any) -> Any:
    """`{"batch": {"size": 64}}` from `batch.size` and 64."""
    if key not in known_keys():
        raise ConfigError(
            unknown_key(key, known_keys(), otherwise="a list or a range is for a key, such as batch.size")
        )
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _fill(template: str, labels: Mapping[str, str]) -> str:
    """`template` with the label of each axis for its `{axis}`."""
    unknown = [axis for axis in PLACE.findall(template) if axis not in labels]
    if unknown:
        raise ConfigError(f"{{{unknown[0]}}} is no axis: there is {_whole(labels)}")
    return PLACE.sub(lambda place: labels[place[1]], template)


def _whole(axes: Iterable[str]) -> str:
    return "-".join(f"{{{axis}}}" for axis in axes)
