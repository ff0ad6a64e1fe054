"""A file of settings for runs of a study, as `rampline run STUDY --overrides FILE` takes it: one line per `--set`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rampline.errors import ConfigError
from rampline.files import write_text
from rampline.study.yaml_file import read_yaml


def write_overrides(path: Path, run: str, settings: Mapping[str, Any], *, heading: str) -> None:
    """Write settings of one run as `RUN:KEY: VALUE`, complete or not at all.

    Args:
        path: the file; one that is there is replaced.
        run: whose settings they are.
        settings: by dotted key.
        heading: what they are and where they come from, for a comment.
    """
    values = {f"{run}:{key}": list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    write_text(path, comment + yaml.safe_dump(values, sort_keys=False))


def read_overrides(path: Path) -> dict[str, str]:
    """Overrides as `load_study` takes them: texts by `KEY` or `RUN:KEY`.

    Raises:
        ConfigError: when the file cannot be read, or holds anything but a value for each key.
    """
    content = read_yaml(path)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path.name}: it must map keys to values, such as baseline:steps_per_call: 64")
    return {_key(path, key): _text(path, key, value) for key, value in content.items()}


def _key(path: Path, key: Any) -> str:
    if not isinstance(key, str):
        raise ConfigError(f"{path.name}: {key!r} is no key of a setting, such as epochs or baseline:epochs")
    return key


def _text(path: Path, key: str, value: Any) -> str:
    """Read as YAML this gives the same value again: `off` in quotes stays a text."""
    try:
        return json.dumps(value)
    except TypeError as error:
        raise ConfigError(f"{path.name}: {key}={value!r} is not a plain value") from error
