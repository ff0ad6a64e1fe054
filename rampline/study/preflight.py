"""Checking a study on this machine, before anything is written or started: its models, weights, devices and data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rampline.config import DataConfig
from rampline.config.choices import AUGMENTATIONS, MODELS
from rampline.config.keras_names import APPLICATIONS, IMAGE_LAYERS, check_parameters, keras_names
from rampline.config.setting import unknown_key
from rampline.errors import ConfigError, InputError
from rampline.imports import locate_own
from rampline.jobs.launchers import launcher_of, resolve_virtual_devices
from rampline.record.home import Home
from rampline.study.content import load_study
from rampline.study.definition import Study

# What these name is never a checkpoint, whatever folders there are.
FRESH_WEIGHTS = ("none", "imagenet")
# Of the parameters of Keras' networks and layers, what Rampline decides.
GIVEN_TO_MODELS = ("include_top", "weights", "input_tensor", "input_shape", "pooling", "classes", "name")
GIVEN_TO_MODELS += ("classifier_activation", "weights_name")
GIVEN_TO_LAYERS = ("value_range", "seed", "data_format", "bounding_box_format", "name")


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
    runs = []
    for run in study.runs:
        try:
            config = resolve_virtual_devices(run.config)
            check_model(config.model.name, config.model.options)
            check_augmentations(config.data)
            if run.starts_from is None:
                check_weights(config.model.weights)
            launcher_of(config).check(config)
        except InputError as error:
            raise type(error)(f"run {run.name}: {error}") from error
        runs.append(dataclasses.replace(run, config=config))
    study = dataclasses.replace(study, runs=tuple(runs))
    from rampline.data.preparation import locate_prepared  # pandas: a wrong study should be told of before a second

    return dataclasses.replace(study, datasets={data: locate_prepared(data, home) for data in study.data})


def settings_differ(
    study: Study,
    name_or_path: str,
    only: Sequence[str],
    overrides: Mapping[str, str],
    strategy: str | None = None,
) -> bool:
    """Whether there are settings given, other arguments as `load_study`, that `study` was not checked with."""
    if not (only or overrides or strategy):
        return False
    try:
        given = load_study(name_or_path, only=only, overrides=overrides, strategy=strategy)
        runs = {run.name: resolve_virtual_devices(run.config) for run in given.runs}
    except InputError:
        return True
    return runs != {run.name: run.config for run in study.runs}


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a `model.name` that is no network of ours or Keras', and code that is not found; nothing is imported.

    Of a network of Keras', `model.options` must be its own.
    """
    applications = keras_names("applications", APPLICATIONS)
    if ":" in name:
        if not locate_own(name, Path.cwd()):
            places = f"{Path.cwd()}, PYTHONPATH and what is installed"
            raise ConfigError(f"model.name={name!r} is not found: looked in {places}")
    elif name in applications:
        check_parameters(options, applications[name], name, "model.options", GIVEN_TO_MODELS)
    elif name not in MODELS:
        known = ", ".join(MODELS)
        allowed = f"{known}, a keras.applications name, or package.module:function"
        raise ConfigError(f"model.name={name!r} is not known: it must be {allowed}")


def check_weights(weights: str) -> None:
    """Refuse `model.weights` that are not there, or a training from scratch would take their place."""
    path = Path(weights)
    is_there = path.is_file() if weights.endswith((".h5", ".keras")) else path.is_dir()
    if weights not in FRESH_WEIGHTS and not is_there:
        allowed = "none, imagenet, a .h5 weight file, a .keras file, the folder of a checkpoint, or run:NAME"
        raise ConfigError(f"model.weights={weights!r} cannot be found: it must be {allowed}")


def check_augmentations(data: DataConfig) -> None:
    """Refuse a layer of `data.augment` that Keras does not have, and options that the layer does not have."""
    layers = keras_names("layers", IMAGE_LAYERS)
    for name, options in data.augmentations:
        if name in AUGMENTATIONS:
            continue
        if name == "AugMix":
            raise ConfigError(
                "data.augment: AugMix draws its operations in Python, once for all images: use RandAugment"
            )
        if name not in layers:
            known, otherwise = [*AUGMENTATIONS, *layers], "an image layer of keras.layers, such as RandomRotation, fits"
            raise ConfigError(unknown_key(name, known, "data.augment", otherwise))
        check_parameters(options, layers[name], name, f"data.augment.{name}", GIVEN_TO_LAYERS)
