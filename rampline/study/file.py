"""Finding a study file and reading it: a built-in one by name, any other by its path."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from rampline.credentials import hide_credentials
from rampline.errors import ConfigError
from rampline.study.content import read_study
from rampline.study.definition import Study
from rampline.yaml_file import read_yaml

BUILT_IN = Path(__file__).parents[1] / "studies"
LONGEST_MESSAGE = 1000


def built_in_studies() -> list[str]:
    """Names of the studies that come with Rampline."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def load_study(name_or_path: str, *, only: Sequence[str] = (), overrides: Mapping[str, str] | None = None) -> Study:
    """Read a built-in study by name or any study by path, and check every run of it.

    Args:
        name_or_path: `digits`, or `path/to/study.yaml`.
        only: names of the runs to keep; all if empty. A run that one of them starts from must be kept too.
        overrides: dotted keys laid over every run that is kept, such as `{"epochs": "2"}`, or over one run, such as
            `{"baseline:epochs": "2"}`.

    Raises:
        ConfigError: when there is no such study, or anything in it is not allowed.
    """
    try:
        path = _find(name_or_path)
        return _read_file(path, only, overrides or {})
    except ConfigError as error:
        raise ConfigError(_readable(str(error))) from error


def _read_file(path: Path, only: Sequence[str], overrides: Mapping[str, str]) -> Study:
    content = read_yaml(path)
    try:
        return read_study(content, default_name=path.stem, only=only, overrides=overrides)
    except ConfigError as error:
        raise ConfigError(f"{path.name}: {error}") from error
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"a value of --set is too long or too deep: {error}") from error


def _readable(message: str) -> str:
    """What was written may be a megabyte long, or hold a password."""
    hidden = hide_credentials(message)
    return hidden if len(hidden) <= LONGEST_MESSAGE else f"{hidden[: LONGEST_MESSAGE // 2]} … {hidden[-300:]}"


def _find(name_or_path: str) -> Path:
    if name_or_path in built_in_studies():
        return BUILT_IN / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    with contextlib.suppress(OSError):  # a name longer than any file's
        if path.suffix in (".yaml", ".yml") and path.is_file():
            return path
    known = ", ".join(built_in_studies())
    raise ConfigError(f"no study {name_or_path!r}: name one of {known}, or give the path of a .yaml file")
