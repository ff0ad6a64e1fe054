"""A study: a dataset, a base configuration and a list of runs, as it was read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rampline.config import RunConfig
from rampline.errors import ConfigError

# They become names of folders, MLflow experiments and runs.
NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
LONGEST_NAME = 100


def check_mapping(what: str, value: Any, known: Sequence[str] | None = None) -> None:
    """Refuse what is no mapping, and keys that are not in `known` (`None`: any)."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} must be a mapping, not {value!r}")
    unknown = [str(key) for key in value if known is not None and key not in known]
    if unknown:
        raise ConfigError(f"unknown key {unknown[0]}: {what} may have {', '.join(known or ())}")


def check_name(what: str, name: Any) -> None:
    """Refuse what cannot be the name of a folder, an MLflow experiment and a metric."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        allowed = f"lower-case letters, digits, - and _, at most {LONGEST_NAME}"
        raise ConfigError(f"{what} {name!r} is not allowed: it must be {allowed}")


def read_text(key: str, content: Mapping[str, Any]) -> str:
    """The free text under `key`, without blanks around it; empty where there is none."""
    value = content.get(key)
    if isinstance(value, Mapping | list):
        raise ConfigError(f"{key} must be a text, not {value!r}")
    return "" if value is None else str(value).strip()


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study: its name, its checked configuration and what others published for it.

    Attributes:
        name: its name, also that of its folder.
        config: its settings; `cluster.virtual_devices` may still be `auto`, see `rampline.devices`.
        description: free text.
        published: figures by metric name, such as `{"train_seconds": 2090, "test_accuracy": 0.94}`.
        train_examples: images of the training split as the study gives it, for a plan before the data is there; `None`
            where it does not, or where `--set` has changed the data.
    """

    name: str
    config: RunConfig
    description: str = ""
    published: Mapping[str, float] = field(default_factory=dict)
    train_examples: int | None = None

    def __post_init__(self) -> None:
        check_name("run name", self.name)

    @property
    def starts_from(self) -> str | None:
        """The run whose best checkpoint this one starts from (`model.weights: run:NAME`), if any."""
        kind, _, name = self.config.model.weights.partition(":")
        return name if kind == "run" else None


@dataclass(frozen=True, kw_only=True)
class Study:
    """A named list of runs, in the order they are trained, and the run that the others are compared with.

    Attributes:
        name: its name, also that of its MLflow experiment.
        description: free text.
        reference: name of the run that speed-up and efficiency are measured against.
        runs: in the order in which they are trained.
        teaches: what it is there to show.
        hardware: what it was written for.
        expected_hours: how long it takes there.
        published_source: where the published figures come from, and on what they were measured.
        prices: USD per hour by machine type.
        deadline_hours: what a recommended set-up may take at most; `None` for no limit.
        accuracy_tolerance: accuracy that a recommended set-up may lose against the most accurate run, in [0, 1]; 0.01
            is one point.
    """

    name: str
    description: str
    reference: str
    runs: tuple[StudyRun, ...]
    teaches: str = ""
    hardware: str = ""
    expected_hours: str = ""
    published_source: str = ""
    prices: Mapping[str, float] = field(default_factory=dict)
    deadline_hours: float | None = None
    accuracy_tolerance: float = 0.01

    def __post_init__(self) -> None:
        check_name("name", self.name)

    @property
    def published_metrics(self) -> tuple[str, ...]:
        """Metrics that others have published for any of the runs, in the order of the file."""
        return tuple(dict.fromkeys(metric for run in self.runs for metric in run.published))

    def run(self, name: str) -> StudyRun:
        """The run of that name.

        Raises:
            ConfigError: when the study has none.
        """
        for run in self.runs:
            if run.name == name:
                return run
        raise ConfigError(f"study {self.name} has no run {name!r}: it has {', '.join(r.name for r in self.runs)}")
