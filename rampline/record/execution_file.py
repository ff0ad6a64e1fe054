"""`execution.json`: what an execution was started with, so that it can be continued as it was."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rampline.config import RunConfig, from_dict, to_dict
from rampline.errors import InputError
from rampline.files import read_json, refuse_newer, write_json
from rampline.record.checkpoints import best_checkpoint
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.study import Study, StudyRun

FILE = "execution.json"
VERSION = 1
STARTS_FROM = "run:"


@dataclass(frozen=True, kw_only=True)
class Execution:
    """An opened execution: the resolved study, where it is kept, and its MLflow run."""

    study: Study
    home: Home
    parent_run_id: str


def write_execution(folder: Path, execution: Execution) -> None:
    """Write `folder/execution.json`."""
    runs = [{**_shallow(run), "config": to_dict(run.config)} for run in execution.study.runs]
    study = {**_shallow(execution.study), "runs": runs}
    home, parent = str(execution.home.root), execution.parent_run_id
    write_json(folder / FILE, {"version": VERSION, "study": study, "home": home, "parent_run_id": parent})


def read_execution(folder: Path) -> Execution:
    """Read `folder/execution.json`.

    Raises:
        InputError: when the folder holds no execution, or that of a newer rampline.
    """
    if not (folder / FILE).is_file():
        raise InputError(f"{folder} is no execution: it has no {FILE}")
    content = read_json(folder / FILE)
    refuse_newer(folder / FILE, content, version=VERSION)
    runs = tuple(StudyRun(**{**run, "config": from_dict(run["config"])}) for run in content["study"]["runs"])
    study = Study(**{**content["study"], "runs": runs})
    return Execution(study=study, home=Home(root=Path(content["home"])), parent_run_id=content["parent_run_id"])


def resolve_weights(config: RunConfig, execution: Path) -> RunConfig:
    """`model.weights=run:NAME` as the path of that run's best checkpoint; any other setting as it is.

    Raises:
        InputError: when that run of the execution has no checkpoint.
    """
    if not config.model.weights.startswith(STARTS_FROM):
        return config
    name = config.model.weights.removeprefix(STARTS_FROM)
    checkpoint = best_checkpoint(RunDirectory(execution / name).checkpoints)
    if checkpoint is None:
        raise InputError(f"model.weights={config.model.weights}: run {name} of {execution} has no checkpoint")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, weights=str(checkpoint)))


def _shallow(value: Study | StudyRun) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def latest_execution(study: str, home: Home) -> Path | None:
    """The newest execution of a study in `home`, finished or not."""
    folders = [file.parent for file in (home.runs / study).glob(f"*/{FILE}")]
    return max(folders, key=lambda folder: (folder / FILE).stat().st_mtime, default=None)
