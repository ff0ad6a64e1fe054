"""A study: a dataset, a base configuration and a list of runs; one YAML file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rampline.config import RunConfig, apply_overrides, from_dict, merge
from rampline.config.checks import check_number
from rampline.credentials import check_no_credentials, hide_credentials
from rampline.errors import ConfigError
from rampline.yaml_file import read_yaml

BUILT_IN = Path(__file__).parent / "studies"
STUDY_KEYS = ("name", "description", "reference", "base", "runs")
RUN_KEYS = ("description", "set", "published")
# They become names of folders, MLflow experiments and runs.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
LONGEST_NAME = 100
LONGEST_MESSAGE = 1000


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study: its name, its checked configuration and what others published for it.

    `published` holds figures by metric name, such as `{"train_seconds": 2090, "test_accuracy": 0.94}`.
    """

    name: str
    config: RunConfig
    description: str = ""
    published: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("run name", self.name)

    @property
    def starts_from(self) -> str | None:
        """The run whose best checkpoint this one starts from (`model.weights: run:NAME`), if any."""
        kind, _, name = self.config.model.weights.partition(":")
        return name if kind == "run" else None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A named list of runs, in the order they are trained, and the run that the others are compared with."""

    name: str
    description: str
    reference: str
    runs: tuple[StudyRun, ...]

    def __post_init__(self) -> None:
        _check_name("name", self.name)

    def run(self, name: str) -> StudyRun:
        """The run of that name.

        Raises:
            ConfigError: when the study has none.
        """
        for run in self.runs:
            if run.name == name:
                return run
        raise ConfigError(f"study {self.name} has no run {name!r}: it has {', '.join(r.name for r in self.runs)}")


def built_in_studies() -> list[str]:
    """Names of the studies that come with Rampline."""
    return sorted(path.stem for path in BUILT_IN.glob("*.yaml"))


def load_study(name_or_path: str, *, only: Sequence[str] = (), overrides: Mapping[str, str] | None = None) -> Study:
    """Read a built-in study by name or any study by path, and check every run of it.

    Args:
        name_or_path: `digits`, or `path/to/study.yaml`.
        only: names of the runs to keep; all if empty. A run that one of them starts from must be kept too.
        overrides: dotted keys laid over every run that is kept, such as `{"epochs": "2"}`.

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
        return _read(content, default_name=path.stem, only=only, overrides=overrides)
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


def _read(content: Any, *, default_name: str, only: Sequence[str], overrides: Mapping[str, str]) -> Study:
    _check_mapping("the study", content, STUDY_KEYS)
    check_no_credentials("", content)
    check_no_credentials("", overrides)
    runs = content.get("runs")
    if not isinstance(runs, Mapping) or not runs:
        raise ConfigError("runs is missing: it must map the name of each run to its settings")
    name = str(content.get("name") or default_name)
    base = content.get("base") or {}
    study = Study(
        name=name,
        description=str(content.get("description") or "").strip(),
        reference=str(content.get("reference") or next(iter(runs))),
        runs=tuple(
            _read_run(run, settings or {}, base, overrides if not only or run in only else {})
            for run, settings in runs.items()
        ),
    )
    study.run(study.reference)
    return _keep_only(_check_order(study), only)


def _read_run(name: str, settings: Any, base: Any, overrides: Mapping[str, str]) -> StudyRun:
    try:
        _check_mapping("its settings", settings, RUN_KEYS)
        _check_mapping("base", base)
        changes = settings.get("set") or {}
        _check_mapping("set", changes)
        published = settings.get("published") or {}
        _check_mapping("published", published)
        for metric, value in published.items():
            _check_name("published metric", metric)
            check_number(f"published.{metric}", value, 0)
        own = merge(base, changes)
        config = from_dict(apply_overrides(own, overrides))
        _check_import(config.model.name, own)
    except ConfigError as error:
        raise ConfigError(f"run {name}: {error}") from error
    description = str(settings.get("description") or "").strip()
    return StudyRun(name=name, config=config, description=description, published=published)


def _check_import(name: str, own: Mapping[str, Any]) -> None:
    """Overrides also come over the network, from Prefect: they must not name code to import."""
    model = own.get("model")
    if ":" in name and (not isinstance(model, Mapping) or model.get("name") != name):
        raise ConfigError(
            f"model.name={name!r} is not allowed in --set: code is imported only if the study file names it"
        )


def _check_order(study: Study) -> Study:
    earlier: set[str] = set()
    for run in study.runs:
        if run.starts_from is not None and run.starts_from not in earlier:
            raise ConfigError(f"run {run.name}: model.weights=run:{run.starts_from} must name a run above it")
        earlier.add(run.name)
    return study


def _keep_only(study: Study, only: Sequence[str]) -> Study:
    kept = {study.run(name).name for name in only} or {run.name for run in study.runs}
    for run in study.runs:
        if run.name in kept and run.starts_from and run.starts_from not in kept:
            raise ConfigError(f"run {run.name} starts from {run.starts_from}: add --only {run.starts_from}")
    return Study(
        name=study.name,
        description=study.description,
        reference=study.reference,
        runs=tuple(run for run in study.runs if run.name in kept),
    )


def _check_mapping(what: str, value: Any, known: Sequence[str] | None = None) -> None:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} must be a mapping, not {value!r}")
    unknown = [str(key) for key in value if known is not None and key not in known]
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]}: {what} may have {', '.join(known or ())}")


def _check_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        allowed = f"lower-case letters, digits, - and _, at most {LONGEST_NAME}"
        raise ConfigError(f"{what} {name!r} is not allowed: it must be {allowed}")
