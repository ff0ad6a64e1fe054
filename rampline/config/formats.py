"""A `RunConfig` as nested values (YAML, JSON), as dotted leaves (MLflow params) and from `key=value` overrides."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from pydantic import TypeAdapter

from rampline.config.run_config import RunConfig
from rampline.config.setting import LARGEST_INTEGER, Options, Settings, schema_of, unknown_key
from rampline.credentials import hide_credentials
from rampline.errors import ConfigError


@functools.cache
def known_keys() -> list[str]:
    """Every dotted key that a study or `--set` may set."""
    return [key for key, _ in _keys(RunConfig, "")]


@functools.cache
def keys_that_keep_epoch_time() -> frozenset[str]:
    """Dotted keys of settings that change what a training leads to, not how long an epoch of it takes."""
    return frozenset(key for key, changes in _keys(RunConfig, "changes_epoch_time") if not changes)


@functools.cache
def keys_that_keep_training() -> frozenset[str]:
    """Dotted keys of settings with which a run stays the same set-up, whatever they are."""
    return frozenset(key for key, changes in _keys(RunConfig, "changes_training") if not changes)


@functools.cache
def _text_keys() -> frozenset[str]:
    """Dotted keys of settings that hold a text, or nothing."""
    schema = schema_of(RunConfig)
    sections = {"": schema} | {f"{inner['title']}.": inner for inner in schema["$defs"].values() if "title" in inner}
    return frozenset(
        f"{section}{name}"
        for section, inner in sections.items()
        for name, field in inner["properties"].items()
        if {one.get("type") for one in field.get("anyOf", [field])} <= {"string", "null"}
    )


def _keys(settings: Any, what: str, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Dotted keys, each with whether it changes `what`, an argument of `setting`."""
    for name, field in settings.__pydantic_fields__.items():
        changes = field.json_schema_extra.get(what, True)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from ((key, changes and inner) for key, inner in _keys(field.annotation, what, f"{prefix}{name}."))
        else:
            yield f"{prefix}{name}", changes


def to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain values, ready for JSON or YAML; `from_dict` gives the same `RunConfig` back."""
    return dataclasses.asdict(config)


def from_dict(values: Mapping[str, Any]) -> RunConfig:
    """Build a `RunConfig` from nested values; what is left out keeps its default.

    Raises:
        ConfigError: on an unknown key, a section that is no mapping, or a value that is not allowed.
    """
    return TypeAdapter(RunConfig).validate_python(values)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any], section: str = "") -> dict[str, Any]:
    """`base` with `changes` laid over it, section by section, and option by option where a key holds options.

    Options that are empty, or stand beside another `name` than that of `base`, replace all that were there. `section`
    is where both belong, such as `cluster.`; empty for all settings.
    """
    merged = dict(base)
    is_renamed = "name" in base and changes.get("name", base["name"]) != base["name"]
    for key, value in changes.items():
        name, before = f"{section}{key}", merged.get(key) or {}
        both_mappings = isinstance(value, Mapping) and isinstance(before, Mapping)
        if both_mappings and name not in known_keys():
            merged[key] = merge(before, value, f"{name}.")
        else:
            merged[key] = {**before, **value} if both_mappings and value and not is_renamed else value
    return merged


def flatten(config: RunConfig) -> dict[str, Any]:
    """Every leaf by its dotted name, such as `{"learning_rate.peak": 0.001}`."""
    return dict(_leaves(to_dict(config)))


def _leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and not isinstance(value, Options):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class PlainLoader(yaml.SafeLoader):
    """YAML 1.1, but `010` and `1:30` are texts: nobody means the 8 and the 90 that they are there."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        is_odd = re.match(r"[-+]?0[0-7_]|.*:", node.value)
        value = node.value if is_odd else super().construct_yaml_int(node)
        if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a whole number of more than 64 bits")
        return value

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        return node.value if ":" in node.value else super().construct_yaml_float(node)


PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)
PlainLoader.add_constructor("tag:yaml.org,2002:float", PlainLoader.construct_yaml_float)


def parse_overrides(assignments: Iterable[str]) -> dict[str, str]:
    """`["epochs=2", "data.limit=50"]` as a mapping of texts.

    Raises:
        ConfigError: where there is no `=`.
    """
    overrides = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator:
            shown = hide_credentials(assignment)
            raise ConfigError(f"--set {shown!r} is not allowed: it must be KEY=VALUE, such as epochs=2")
        overrides[key.strip()] = value.strip()
    return overrides


def write_value(value: Any) -> str:
    """The text of an override, of one line, that gives this value again: `off` gets quotes, and 1e-07 a point."""
    return yaml.safe_dump(value, default_flow_style=True, width=math.inf).removesuffix("...\n").strip()


def apply_overrides(values: Mapping[str, Any], overrides: Mapping[str, str]) -> dict[str, Any]:
    """Nested `values` with dotted `overrides` laid over them: texts, read as YAML but where a text is wanted.

    Raises:
        ConfigError: on a key that is not known or a value that is not YAML.
    """
    changes: dict[str, Any] = {}  # all of them together: options go with the name that is set beside them
    for key, text in overrides.items():
        try:
            value = _read_value(key, text) if isinstance(text, str) else text
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist
            raise ConfigError(f"--set {key}={text} is not allowed: it must be a YAML value") from error
        changes = merge(changes, nest(key, value))
    return merge(values, changes)


def nest(key: str, value: Any, *, otherwise: str = "") -> dict[str, Any]:
    """`{"batch": {"size": 64}}` from `batch.size` and 64; `otherwise` as in `unknown_key`.

    Raises:
        ConfigError: on a key that is not known.
    """
    if key not in known_keys():
        raise ConfigError(unknown_key(key, known_keys(), otherwise=otherwise))
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _read_value(key: str, text: str) -> Any:
    # A path may hold ` #`, which begins a comment in YAML, and a regular expression may begin with `[`.
    is_yaml = key not in _text_keys() or text.startswith(('"', "'")) or text.lower() in ("", "~", "null")
    return yaml.load(text, Loader=PlainLoader) if is_yaml else text
