"""YAML that somebody else may have written: plain values only, bounded in size, no key twice.

A study is such a file, and so is one of settings for its runs, as `rampline run STUDY --overrides FILE` takes it: one
line per `--set`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rampline.config.formats import PlainLoader, write_value
from rampline.config.setting import check_plain
from rampline.errors import ConfigError
from rampline.files import write_text

MAX_BYTES = 256 * 1024
# Values with every alias written out: a few lines of aliases of aliases make billions.
MAX_VALUES = 50_000


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        ConfigError: when it cannot be read, is no YAML, makes Python objects, has a key twice or a value that contains
            itself, or is larger than any study has a reason to be.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it is larger than {MAX_BYTES // 1024} KiB")
        return yaml.load(content.decode("utf-8-sig"), Loader=_StrictLoader)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: not YAML: it is nested too deeply") from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a date that does not exist
        raise ConfigError(f"{path}: cannot be read: {error}") from error


class _StrictLoader(PlainLoader):
    """Others would drop all but the last of a key that is given twice, and take as long as aliases want."""

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node is not None and _count_values(node, {}) > MAX_VALUES:
            raise yaml.YAMLError(f"its aliases make more than {MAX_VALUES} values")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise ConfigError(f"line {key.start_mark.line + 1}: key {key.value} is given twice")
            seen.add(key.value)
        return node


def _count_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Values below and with `node`, aliases written out; in `known`, 0 stands for a node that is being counted."""
    if id(node) in known:
        if not known[id(node)]:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a value contains itself")
        return known[id(node)]
    known[id(node)] = 0
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    known[id(node)] = 1 + sum(_count_values(part, known) for part in inner)
    return known[id(node)]


def write_overrides(path: Path, run: str, settings: Mapping[str, Any], *, heading: str) -> None:
    """Write settings of one run as `RUN:KEY: VALUE` below a comment, complete or not at all."""
    values = {f"{run}:{key}": value for key, value in settings.items()}
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
    for key, value in content.items():
        if not isinstance(key, str):
            raise ConfigError(f"{path.name}: {key!r} is no key of a setting, such as epochs or baseline:epochs")
        try:
            check_plain({key: value})
        except ValueError as error:
            raise ConfigError(f"{path.name}: {key}={value!r} is not a plain value") from error
    return {key: write_value(value) for key, value in content.items()}
