"""Checking a study on this machine, before anything is written or started: its models, weights, devices and data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rampline.config import RunConfig
from rampline.config.keras_names import check_augmentations, check_model, check_weights
from rampline.errors import InputError
from rampline.jobs.launchers import launcher_of, resolve_virtual_devices
from rampline.record.home import Home
from rampline.study.content import load_study, told_of
from rampline.study.definition import Study
from rampline.study.execution_file import Execution, is_begun, new_execution


def check_study(study: Study, home: Home) -> Study:
    """Check all of a study that reading it does not, before anything is written or started.

    What it returns is resolved for this machine: `cluster.virtual_devices: auto` is a number, and `datasets` says what
    is prepared in `home`.

    Raises:
        InputError: on a setting, device count or data source that cannot be used.
    """
    runs = []
    for run in study.runs:
        with told_of(f"run {run.name}"):
            config = _resolve(run.config)
            check_model(config.model.name, config.model.options)
            check_augmentations(config.data)
            if run.starts_from is None:
                check_weights(config.model.weights)
            launcher_of(config).check(config)
        runs.append(dataclasses.replace(run, config=config))
    study = dataclasses.replace(study, runs=tuple(runs))
    from rampline.data.preparation import locate_prepared  # pandas: a wrong study should be told of before a second

    return dataclasses.replace(study, datasets={data: locate_prepared(data, home) for data in study.data})


def _resolve(config: RunConfig) -> RunConfig:
    """With what its texts stand for on this machine: a number of virtual devices, and the home folder for `~`."""
    model = dataclasses.replace(config.model, weights=os.path.expanduser(config.model.weights))
    return resolve_virtual_devices(dataclasses.replace(config, model=model))


def continue_or_check(
    study: str,
    folder: Path | None,
    home: Home,
    log: Callable[[str], None],
    *,
    only: Sequence[str],
    overrides: Mapping[str, str],
    strategy: str | None = None,
) -> Execution:
    """The execution that was begun in a folder, or else a new one of that name, checked as by `check_study`."""
    if folder and is_begun(folder):
        # It has the settings that it was started with, which were checked then.
        begun = Execution.open(folder)
        tell_other_settings(begun, study, log, only=only, overrides=overrides, strategy=strategy)
        return begun
    checked = check_study(load_study(study, only=only, overrides=overrides, strategy=strategy), home)
    name = folder.name if folder else new_execution()
    return Execution(folder=home.runs / checked.name / name, study=checked, home=home)


def tell_other_settings(
    begun: Execution,
    study: str,
    log: Callable[[str], None],
    *,
    only: Sequence[str] = (),
    overrides: Mapping[str, str] | None = None,
    strategy: str | None = None,
) -> None:
    """Say of an execution that is continued where its settings are not those that are given, or those of the file."""
    if settings_differ(begun.study, study, only, overrides or {}, strategy):
        others = "" if only or overrides or strategy else ", not those of the study's file"
        log(f"execution {begun.name} continues with the settings it was started with{others}")


def settings_differ(
    study: Study,
    name_or_path: str,
    only: Sequence[str],
    overrides: Mapping[str, str],
    strategy: str | None = None,
) -> bool:
    """Whether the study file with what is given, arguments as in `load_study`, is not what `study` was checked with.

    Where the file is gone, it is what is given alone.
    """
    try:
        given = load_study(name_or_path, only=only, overrides=overrides, strategy=strategy)
        runs = {run.name: _resolve(run.config) for run in given.runs}
    except InputError:
        return bool(only or overrides or strategy)
    return runs != {run.name: run.config for run in study.runs}
