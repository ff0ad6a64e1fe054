"""The parameters of the flows' forms: what they offer, and the execution that they lead to."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from prefect import get_run_logger
from pydantic import Field

from rampline.config import ClusterConfig, RunConfig, run_config, sections
from rampline.errors import ConfigError, InputError
from rampline.record.home import Home
from rampline.study import load_study
from rampline.study.execution_file import Execution, current_execution, is_begun
from rampline.study.preflight import check_study, continue_or_check
from rampline.tasks.flow_run import own_name

# What forms offer; `with_values` passes over `AS_IN_STUDY`.
AS_IN_STUDY: Final = "as in the study"


class TextOf:
    """For `Annotated`: a parameter is described in its form as the setting that it stands for.

    Prefect reads descriptions from docstrings, and leaves those of a `Field` out.
    """

    def __init__(self, settings: Any, name: str, otherwise: str = "none for what the study says") -> None:
        text = settings.__pydantic_fields__[name].description
        text = (text[0].upper() + text[1:]).replace("`", "")
        self.text = f"{text}; {otherwise}."

    def __get_pydantic_json_schema__(self, schema: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return handler(schema) | {"description": self.text}


_AtLeastOne = Annotated[int, Field(ge=1)] | None
# Prefect's form has a button per kind of value, with its title, and a drop-down where there is an `enum`.
_Auto = Annotated[Literal["auto"], Field(title=sections.AUTO, json_schema_extra={"enum": [sections.AUTO]})]
Engine = Annotated[Literal["as in the study", run_config.Engine], TextOf(RunConfig, "engine", "or as in the study")]
Precision = Annotated[
    Literal["as in the study", run_config.Precision], TextOf(RunConfig, "precision", "or as in the study")
]
Launcher = Annotated[
    Literal["as in the study", sections.Launcher], TextOf(ClusterConfig, "launcher", "or as in the study")
]
Epochs = Annotated[_AtLeastOne, TextOf(RunConfig, "epochs")]
Replicas = Annotated[_AtLeastOne | _Auto, TextOf(ClusterConfig, "replicas")]
Workers = Annotated[_AtLeastOne, TextOf(ClusterConfig, "workers")]
ParameterServers = Annotated[_AtLeastOne, TextOf(ClusterConfig, "parameter_servers")]

FLOW_OF_STRATEGY = {
    "single": "baseline",
    "mirrored": "finetune",
    "multi_worker": "cluster",
    "parameter_server": "cluster",
}


def with_values(overrides: Mapping[str, str], *, launcher: object = None, **values: object) -> dict[str, str]:
    """`overrides` with those `values` laid over them that are neither `None` nor `AS_IN_STUDY`."""
    values |= {"cluster.launcher": launcher}
    given = {key: str(value) for key, value in values.items() if value not in (None, AS_IN_STUDY)}
    return {**overrides, **given}


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


def own_output(output: str) -> str:
    """The parameter `output` of the flow `predict`: empty, or a path below `predictions` of this home.

    Raises:
        InputError: for any other path: whoever may start flow runs names it, and a table replaces what is there.
    """
    predictions = Home.from_environment().predictions
    path = predictions / output
    if not path.resolve().is_relative_to(predictions.resolve()):
        raise InputError(f"output={output!r} is not allowed: it must be a path below {predictions}, or empty")
    return output and str(path)


def find_execution(
    study: str, only: Sequence[str], overrides: Mapping[str, str], execution: str = "", strategy: str = "all"
) -> Execution:
    """The execution that a form means: an open one, a begun one, or else a new one of the study, which is checked.

    Args:
        study: name or path.
        only: runs; all if empty.
        overrides: dotted keys laid over every run.
        execution: folder, also of one that is to begin; empty for the one that belongs to the current flow run.
        strategy: keep the runs with this strategy, and those that they start from.

    Raises:
        InputError: when the study or this machine does not allow it; nothing is written then.
    """
    if opened := current_execution():
        return opened
    home, chosen = Home.from_environment(), None if strategy == "all" else strategy
    folder = Path(own_execution(execution) or home.runs / load_study(study).name / own_name())
    log = get_run_logger().info
    return continue_or_check(study, folder, home, log, only=only, overrides=overrides, strategy=chosen)


def find_stage(flow: str, study: str, run: str, overrides: Mapping[str, str]) -> Execution:
    """The execution of a flow that trains one run: that run, and those whose weights it starts from.

    Raises:
        ConfigError: when the study has no such run, or another flow trains its strategy.
        InputError: when this machine does not allow it.
    """
    home, listed = Home.from_environment(), load_study(study).run(run).listed
    # A form names its run, which may be a repeat.
    overrides = {key.replace(f"{run}:", f"{listed}:"): value for key, value in overrides.items()}
    own = {key if ":" in key else f"{listed}:{key}": overrides[key] for key in overrides}
    # Other runs of the study need not be possible with the overrides.
    names = load_study(study, overrides=own).with_ancestors(run)
    loaded = load_study(study, only=names, overrides=overrides)
    strategy = loaded.run(run).config.strategy
    if FLOW_OF_STRATEGY[strategy] != flow:
        raise ConfigError(
            f"run {run} has strategy {strategy}: the flow {FLOW_OF_STRATEGY[strategy]} trains it, not {flow}"
        )
    folder = home.runs / loaded.name / own_name()
    if is_begun(folder):
        return Execution.open(folder)
    stage = dataclasses.replace(loaded, runs=tuple(map(loaded.run, names)))  # without their repeats
    return Execution(folder=folder, study=check_study(stage, home), home=home)


def find_trained(study: str, execution: str, runs: Sequence[str]) -> tuple[Execution, list[str]]:
    """An execution (empty: the open one, else the latest of `study`), and its `runs` (empty: those that are trained).

    Raises:
        InputError: when there is no such execution or run, the folder is not allowed, or they are not trained.
    """
    home = Home.from_environment()
    if execution:
        opened = Execution.open(Path(own_execution(execution)))
    else:
        opened = current_execution() or Execution.latest(load_study(study).name, home)
    if opened is None:
        raise InputError(f"study {load_study(study).name} has no execution in {home.runs}: run it first")
    chosen = [opened.study.run(run).name for run in runs or [run.name for run in opened.study.runs]]
    trained = [run for run in chosen if opened.directory(run).is_complete]
    if not trained or (runs and trained != chosen):
        others = ", ".join(run for run in chosen if run not in trained)
        raise InputError(f"nothing to evaluate of {others}: not trained in {opened.folder}")
    return opened, trained
