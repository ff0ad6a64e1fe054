"""Checking a study on this machine, before anything is written or started: its models, weights, devices and data."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from rampline.config.choices import MODELS
from rampline.devices import resolve_virtual_devices
from rampline.errors import ConfigError, InputError
from rampline.imports import locate_own
from rampline.jobs.launchers import launcher_of
from rampline.record.home import Home
from rampline.study.content import load_study
from rampline.study.definition import Study

# What these name is never a checkpoint, whatever folders there are.
FRESH_WEIGHTS = ("none", "imagenet")


def check_study(
    name_or_path: str,
    *,
    home: Home,
    only: Sequence[str] = (),
    overrides: Mapping[str, str] | None = None,
    strategy: str | None = None,
) -> Study:
    """Read a study and check all that can be checked before anything is written or started; arguments as `load_study`.

    What it returns is resolved for this machine: `cluster.virtual_devices: auto` is a number, and `datasets` says what
    is prepared in `home`.

    Raises:
        InputError: on a study, setting, device count or data source that cannot be used.
    """
    return check_machine(load_study(name_or_path, only=only, overrides=overrides, strategy=strategy), home)


def check_machine(study: Study, home: Home) -> Study:
    """The part of `check_study` after reading: whether this machine can run the study; returns it resolved.

    Raises:
        InputError: naming the run.
    """
    runs = (dataclasses.replace(run, config=resolve_virtual_devices(run.config)) for run in study.runs)
    study = dataclasses.replace(study, runs=tuple(runs))
    for run in study.runs:
        try:
            check_model(run.config.model.name)
            if run.starts_from is None:
                check_weights(run.config.model.weights)
            launcher_of(run.config).check(run.config)
        except InputError as error:
            raise type(error)(f"run {run.name}: {error}") from error
    from rampline.data.preparation import locate_prepared  # pandas: a wrong study should be told of before a second

    return dataclasses.replace(study, datasets={data: locate_prepared(data, home) for data in study.data})


def check_model(name: str) -> None:
    """Refuse a `model.name` that is no network of ours or Keras', and code that is not found; nothing is imported."""
    if ":" in name:
        if not locate_own(name, Path.cwd()):
            places = f"{Path.cwd()}, PYTHONPATH and what is installed"
            raise ConfigError(f"model.name={name!r} is not found: looked in {places}")
    elif name not in (*MODELS, *keras_applications()):
        known = ", ".join(MODELS)
        allowed = f"{known}, a keras.applications name, or package.module:function"
        raise ConfigError(f"model.name={name!r} is not known: it must be {allowed}")


def check_weights(weights: str) -> None:
    """Refuse `model.weights` that are not there, or a training from scratch would take their place."""
    path = Path(weights)
    is_there = path.is_file() if weights.endswith(".h5") else path.is_dir()
    if weights not in FRESH_WEIGHTS and not is_there:
        allowed = "none, imagenet, a .h5 weight file, the folder of a checkpoint, or run:NAME"
        raise ConfigError(f"model.weights={weights!r} cannot be found: it must be {allowed}")


@functools.cache
def keras_applications() -> frozenset[str]:
    """The networks of `keras.applications`, as the file says that exports them: importing it takes seconds."""
    spec = find_spec("keras")
    if spec is None or spec.origin is None:
        raise ConfigError("Keras is not installed: `rampline doctor` says more")
    source = (Path(spec.origin).parent / "applications" / "__init__.py").read_text(encoding="utf-8")
    imported = (node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom))
    names = {alias.asname or alias.name for node in imported for alias in node.names}
    return frozenset(name for name in names if name[0].isupper())
