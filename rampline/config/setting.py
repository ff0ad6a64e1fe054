"""What a setting is: a field of a frozen pydantic dataclass with its default, description and bounds.

`dataclasses.replace` and the constructor check every value. Wrong input is one line: the field, the value and what is
allowed, in the words that `docs/studies.md` has too.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    model_validator,
)
from pydantic import dataclasses as pydantic_dataclasses
from pydantic_core import core_schema

from rampline.credentials import check_no_credentials
from rampline.errors import ConfigError

# What TensorFlow, and the files that a setting is written to, can hold.
LARGEST_INTEGER = 2**63 - 1
UNKNOWN_KEY = ("unexpected_keyword_argument", "invalid_key")
NO_MAPPING = ("dataclass_type", "dict_type", "mapping_type")

T = TypeVar("T")


class OneOf:
    """For `Annotated[str, OneOf(REGISTRY)]`: a key that the registry has when the value is checked."""

    def __init__(self, registry: Mapping[Any, Any]) -> None:
        self.registry = registry

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable) -> dict[str, Any]:
        about = {name: entry if isinstance(entry, str) else entry.about for name, entry in self.registry.items()}
        return handler(schema) | {"enum": list(about), "meanings": about}

    def _check(self, name: Any) -> Any:
        if name not in self.registry:
            raise ValueError(name)
        return name


class Options(dict[str, Any]):
    """Options of a function of Keras', by name: plain values. Hashable, as the settings that hold them are."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


def check_plain(options: dict[str, Any]) -> Options:
    """Refuse values that JSON does not have, such as a date of YAML's."""
    try:
        json.dumps(options, allow_nan=False)
    except TypeError as error:
        raise ValueError(options) from error
    return Options(options)


def _check_number(value: Any, check: Callable[[Any], float]) -> Any:
    """A whole number stays one: it is written to files and MLflow as it was given."""
    # YAML 1.1 reads 1e-3 as text; people write it for learning rates.
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", value):
        value = float(value)
    check(value)
    return value


def _check_text(text: str, info: ValidationInfo) -> str:
    check_no_credentials(_dotted((info.config or {}).get("title") or "", info.field_name or ""), text)
    return text


def _check_whole(value: int) -> int:
    if value > LARGEST_INTEGER:
        raise ValueError(value)
    return value


# Bounds of a field are those of its type, or of its `setting`: never of both.
Integer = Annotated[int, Field(strict=True), AfterValidator(_check_whole)]
Whole = Annotated[int, Field(ge=0, strict=True), AfterValidator(_check_whole)]
Count = Annotated[int, Field(ge=1, strict=True), AfterValidator(_check_whole)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False), WrapValidator(_check_number)]
NotNegative = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False), WrapValidator(_check_number)]
Positive = Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False), WrapValidator(_check_number)]
Fraction = Annotated[float, Field(gt=0, lt=1, strict=True, allow_inf_nan=False), WrapValidator(_check_number)]
PositiveShare = Annotated[float, Field(gt=0, le=1, strict=True, allow_inf_nan=False), WrapValidator(_check_number)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1), AfterValidator(_check_text)]


def setting(
    default: Any,
    about: str,
    *,
    changes_epoch_time: bool = True,
    changes_training: bool = True,
    allowed: str | Mapping[str, str] = "",
    **bounds: float,
) -> Any:
    """A field of settings.

    Args:
        default: its value where it is left out; a class of settings stands for its defaults.
        about: what it is, with its unit, for documents, editors and forms.
        changes_epoch_time: whether an epoch may take another time with another value.
        changes_training: whether runs with other values are other set-ups, and not compared as trainings of one.
        allowed: what it may be, where type and bounds do not say it: in words, or its forms, each with what it means.
        bounds: `ge`, `gt`, `le`, `lt`.
    """
    changes = {"changes_epoch_time": changes_epoch_time, "changes_training": changes_training}
    words: dict[str, Any] = {name: False for name, is_changed in changes.items() if not is_changed}
    if isinstance(allowed, Mapping):
        words |= {"examples": list(allowed), "meanings": allowed}
    elif allowed:
        words["allowed"] = allowed
    how = {"default_factory": default} if isinstance(default, type) else {"default": default}
    return Field(**how, description=about, json_schema_extra=words, **bounds)  # type: ignore[arg-type]


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings(section: str) -> Callable[[type[T]], type[T]]:
    """Make a class of settings of a subclass of `Settings`; `section` is the dotted name before those of its fields."""
    config = ConfigDict(extra="forbid", title=section or None, defer_build=True)
    return pydantic_dataclasses.dataclass(frozen=True, kw_only=True, config=config)  # type: ignore[return-value]


class Settings:
    """Base of classes of settings: a `ConfigError` of one line for any value that is not allowed."""

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, values: Any, check: Callable[[Any], Any]) -> Any:
        try:
            return check(values)
        except ValidationError as error:
            raise ConfigError(_one_line(cls, error)) from error


def _one_line(settings: type, error: ValidationError) -> str:
    schema, section = schema_of(settings), settings.__pydantic_config__["title"] or ""  # type: ignore[attr-defined]
    wrong = error.errors(include_url=False, include_context=False)
    first = next((one for one in wrong if one["type"] in UNKNOWN_KEY), wrong[0])
    where, value = [str(part) for part in first["loc"]], first["input"]
    if first["type"] in UNKNOWN_KEY:
        outer, _, inner = where[0].partition(".")
        if inner and outer in schema["properties"]:
            return f"unknown key {where[0]}: here it is written as {outer}: {{{inner}: …}}"
        return unknown_key(where[0], list(schema["properties"]), section)
    name = _dotted(section, *where[:1])
    if first["type"] in NO_MAPPING:
        return refusal(name, value, "a mapping of keys" + (f", such as {name}: {{…}}" if name else ""))
    if first["type"] == "missing":
        return f"{name} is missing"
    allowed = schema["properties"][where[0]]
    if "additionalProperties" in allowed and where[1:]:
        if where[-1] == "[key]":
            return refusal(f"a key of {name}", value, "a non-empty text")
        name, allowed = _dotted(name, where[1]), allowed["additionalProperties"]
    return refusal(name, value, describe(allowed))


def refusal(name: str, value: object, allowed: str) -> str:
    """The line that refuses the value of a setting."""
    return f"{name}={value!r} is not allowed: it must be {allowed}".removeprefix("=")


def unknown_key(key: Any, known: list[str], section: str = "", otherwise: str = "") -> str:
    """The line that refuses a key; `otherwise` is told where none is near, instead of all that are known."""
    near = difflib.get_close_matches(str(key), known, n=1)
    known = [_dotted(section, name) for name in near or known]
    hint = f"did you mean {known[0]}?" if near else otherwise or f"known: {', '.join(known)}"
    return f"unknown key {_dotted(section, str(key))}: {hint}"


def _dotted(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def check(condition: bool, name: str, value: object, allowed: str) -> None:
    """Refuse a value that does not go with others."""
    if not condition:
        raise ConfigError(refusal(name, value, allowed))


def schema_of(settings: Any) -> dict[str, Any]:
    """The JSON schema of a class of settings, or of a type."""
    return TypeAdapter(settings).json_schema()


def describe(schema: Mapping[str, Any], write: Callable[[Any], str] = str) -> str:
    """What a JSON schema allows, in words; `write` writes a value, such as `auto`."""
    if "allowed" in schema:
        return schema["allowed"]
    if "anyOf" in schema:
        *first, last = [part for one in schema["anyOf"] for part in _parts(one, write)]
        return f"{', '.join(first)} or {last}"
    if "enum" in schema or "examples" in schema:
        return "one of " + ", ".join(_parts(schema, write))
    kind = schema.get("type", "object")
    if kind in ("integer", "number"):
        return _describe_number(schema, kind)
    return {"boolean": "true or false", "string": "a non-empty text", "object": "a mapping of keys"}[kind]


def _parts(schema: Mapping[str, Any], write: Callable[[Any], str]) -> list[str]:
    if schema.get("type") == "null":
        return [write("null")]
    values = schema.get("enum") or schema.get("examples") or ([schema["const"]] if "const" in schema else [])
    return [write(value) for value in values] or [describe(schema, write)]


def _describe_number(schema: Mapping[str, Any], kind: str) -> str:
    words = {"minimum": "at least", "exclusiveMinimum": "greater than"}
    words |= {"maximum": "at most", "exclusiveMaximum": "less than"}
    bounds = " and ".join(f"{word} {schema[key]:.10g}" for key, word in words.items() if key in schema)
    return f"a {'whole number of' if kind == 'integer' else 'number'} {bounds}"
