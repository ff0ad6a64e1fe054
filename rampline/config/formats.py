"""A `RunConfig` as nested values (YAML, JSON), as dotted leaves (MLflow params) and from `key=value` overrides."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from rampline.config.run_config import RunConfig
from rampline.credentials import hide_credentials
from rampline.errors import ConfigError

SECTIONS: dict[str, type] = {
    f.name: f.default_factory  # type: ignore[misc]
    for f in dataclasses.fields(RunConfig)
    if f.default_factory is not dataclasses.MISSING
}


def known_keys() -> list[str]:
    """Every dotted key that a study or `--set` may set."""
    return [key for key, _ in _leaves(to_dict(RunConfig()))]


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain values, ready for JSON or YAML; `from_dict` gives the same `RunConfig` back."""
    return dataclasses.asdict(config)


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Build a `RunConfig` from nested values; what is left out keeps its default.

    Raises:
        ConfigError: on an unknown key, a section that is no mapping, or a value that is not allowed.
    """
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        _check_known(key, [f.name for f in dataclasses.fields(RunConfig)], prefix="")
        section = SECTIONS.get(key)
        arguments[key] = _build_section(section, key, value) if section else _exponents(value)
    return RunConfig(**arguments)


def _build_section(section: type, name: str, values: Any) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name}={values!r} is not allowed: it must be a mapping of keys, such as {name}: {{…}}")
    for key in values:
        _check_known(key, [f.name for f in dataclasses.fields(section)], prefix=f"{name}.")
    # YAML 1.1 reads off as false.
    values = {k: "off" if k == "prefetch" and v is False else v for k, v in values.items()}
    return section(**{k: tuple(v) if isinstance(v, list) else _exponents(v) for k, v in values.items()})


def _exponents(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 as text; people write it for learning rates."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        return float(value)
    return value


def _check_known(key: Any, known: list[str], *, prefix: str) -> None:
    if key not in known:
        near = difflib.get_close_matches(str(key), known, n=1)
        hint = f"did you mean {prefix}{near[0]}?" if near else f"known: {', '.join(prefix + k for k in known)}"
        raise ConfigError(f"unknown key {prefix}{key}: {hint}")


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section."""
    merged = dict(base)
    for key, value in changes.items():
        both_mappings = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both_mappings else value
    return merged


def flatten(config: RunConfig) -> dict[str, Any]:
    """Every leaf by its dotted name, such as `{"learning_rate.peak": 0.001}`."""
    return dict(_leaves(to_dict(config)))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def parse_overrides(assignments: Iterable[str]) -> dict[str, str]:
    """`["epochs=2", "data.limit=50"]` as a mapping of texts.

    Raises:
        ConfigError: where there is no `=` or the key is not known.
    """
    overrides = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator:
            shown = hide_credentials(assignment)
            raise ConfigError(f"--set {shown!r} is not allowed: it must be KEY=VALUE, such as epochs=2")
        overrides[key.strip()] = value.strip()
    return overrides


def apply_overrides(values: Mapping[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    """Nested `values` with dotted `overrides` (texts, read as YAML) laid over them.

    Raises:
        ConfigError: on a key that is not known or a value that is not YAML.
    """
    for key, text in overrides.items():
        _check_known(key, known_keys(), prefix="")
        try:
            value = yaml.safe_load(text) if isinstance(text, str) else text
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
            raise ConfigError(f"--set {key}={text} is not allowed: it must be a YAML value") from error
        for part in reversed(key.split(".")):
            value = {part: value}
        values = merge(values, value)
    return dict(values)
