"""How the runs of a study become stages: what is checked first, which flow trains which run, how an execution ends."""

from __future__ import annotations

import ast
import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from rampline.config import DataConfig, run_config
from rampline.config.choices import MODELS
from rampline.devices import check_devices, resolve_virtual_devices
from rampline.errors import ConfigError, InputError
from rampline.imports import locate_own
from rampline.jobs.roles import tasks_to_start
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.study import Study, load_study

# What these name is never a checkpoint, whatever folders there are.
FRESH_WEIGHTS = ("none", "imagenet")


def check_name(name: str) -> None:
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


# What forms offer; `with_values` passes over `AS_IN_STUDY`.
AS_IN_STUDY: Final = "as in the study"
Engine = Literal["as in the study", run_config.Engine]
Precision = Literal["as in the study", run_config.Precision]

FLOW_OF_STRATEGY = {
    "single": "baseline",
    "mirrored": "finetune",
    "multi_worker": "cluster",
    "parameter_server": "cluster",
}


def check_study(study: str, only: Sequence[str], overrides: Mapping[str, str]) -> Study:
    """Read a study and check all that can be checked before anything is written or started.

    Settings that depend on this machine (`cluster.virtual_devices: auto`) are numbers in what it returns.

    Raises:
        InputError: on a study, setting, device count or data source that cannot be used.
    """
    loaded = _on_this_machine(load_study(study, only=only, overrides=overrides))
    for run in loaded.runs:
        try:
            check_name(run.config.model.name)
            if run.starts_from is None:
                check_weights(run.config.model.weights)
            check_devices(run.config)
            tasks_to_start(run.config)
        except InputError as error:
            raise type(error)(f"run {run.name}: {error}") from error
    from rampline.data.preparation import locate_prepared  # pandas: a wrong study should be told of before a second

    for config in datasets_of(loaded):
        locate_prepared(config, Home.from_environment())
    return loaded


def _on_this_machine(study: Study) -> Study:
    runs = (dataclasses.replace(run, config=resolve_virtual_devices(run.config)) for run in study.runs)
    return dataclasses.replace(study, runs=tuple(runs))


def only_of_strategy(study: str, only: Sequence[str], strategy: str) -> list[str]:
    """Of the runs `only` (empty: of all) of a study those with this strategy, and those whose weights they start from.

    `all` leaves `only` as it is.

    Raises:
        ConfigError: when there is none, or no such study or run.
    """
    if strategy == "all":
        return list(only)
    loaded = load_study(study)
    chosen = [run for run in loaded.runs if run.config.strategy == strategy and (not only or run.name in only)]
    if not chosen:
        of = f"none of {', '.join(only)}" if only else "no run of the study"
        raise ConfigError(f"{loaded.name}: {of} has strategy {strategy}")
    return list(dict.fromkeys(name for run in chosen for name in _with_ancestors(loaded, run.name)))


def is_begun(execution: Path) -> bool:
    """Whether the folder holds an execution, so that `--resume` can continue it: its data is prepared before."""
    from rampline.record.execution_file import FILE

    return (execution / FILE).is_file()


def own_execution(execution: str) -> str:
    """A flow's parameter `execution`: empty, or the absolute path of a folder `runs/STUDY/EXECUTION` of this home.

    Whoever may start flow runs names it, and what an execution holds says what is imported.

    Raises:
        InputError: for any other folder.
    """
    folder, runs = Path(os.path.abspath(execution)), Home.from_environment().runs
    if execution and folder.parent.parent.resolve() != runs.resolve():
        raise InputError(
            f"execution={execution!r} is not allowed: it must be a folder {runs}/STUDY/EXECUTION, or empty"
        )
    return execution and str(folder)


def study_of(study: str, only: Sequence[str], overrides: Mapping[str, str], execution: str) -> Study:
    """The study as the folder `execution` was started with, where there is such an execution; else `check_study`."""
    from rampline.record.execution_file import read_execution

    if execution and is_begun(Path(execution)):
        return read_execution(Path(execution)).study
    return check_study(study, only, overrides)


def trained_runs(study: str, execution: str, runs: Sequence[str]) -> tuple[str, list[str]]:
    """The folder of an execution (empty: the latest of `study`), and which of `runs` (empty: of all) are trained.

    Raises:
        InputError: when there is no execution, no such run, or nothing is trained.
    """
    from rampline.record.execution_file import latest_execution, read_execution

    name, execution = load_study(study).name, own_execution(execution)
    folder = Path(execution) if execution else latest_execution(name, Home.from_environment())
    if folder is None:
        raise InputError(f"study {name} has no execution in {Home.from_environment().runs}: run it first")
    opened = read_execution(folder).study
    chosen = [opened.run(run).name for run in runs] or [run.name for run in opened.runs]
    trained = [run for run in chosen if RunDirectory(folder / run).is_complete]
    if not trained:
        raise InputError(f"nothing to evaluate: none of {', '.join(chosen)} is trained in {folder}")
    return str(folder), trained


def datasets_of(study: Study) -> list[DataConfig]:
    """The distinct data settings of the study's runs, in the order of the runs."""
    return list(dict.fromkeys(run.config.data for run in study.runs))


def plan_stage(flow: str, study: str, run: str, overrides: Mapping[str, str]) -> list[str]:
    """Runs to train so that `run` can be trained by itself: those it starts from, then `run`.

    Raises:
        ConfigError: when the study has no such run, or another flow trains its strategy.
    """
    loaded = load_study(study, overrides=overrides)
    strategy = loaded.run(run).config.strategy
    if FLOW_OF_STRATEGY[strategy] != flow:
        raise ConfigError(
            f"run {run} has strategy {strategy}: the flow {FLOW_OF_STRATEGY[strategy]} trains it, not {flow}"
        )
    return _with_ancestors(loaded, run)


def _with_ancestors(study: Study, run: str) -> list[str]:
    """The runs that it starts from, the first of them first, then itself."""
    runs = [run]
    while parent := study.run(runs[0]).starts_from:
        runs.insert(0, parent)
    return runs


def with_values(overrides: Mapping[str, str], **values: object) -> dict[str, str]:
    """`overrides` with those `values` laid over them that are neither `None` nor `AS_IN_STUDY`."""
    given = {key: str(value) for key, value in values.items() if value not in (None, AS_IN_STUDY)}
    return {**overrides, **given}
