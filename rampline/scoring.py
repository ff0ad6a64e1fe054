"""Scoring one run again, by its MLflow run id or its run directory: what `rampline evaluate` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException

from rampline.cluster.evaluator import run_evaluation
from rampline.data.preparation import prepare_dataset
from rampline.errors import InputError
from rampline.files import read_json
from rampline.home import Home
from rampline.run_directory import RunDirectory
from rampline.tracking.run_artifacts import log_evaluation
from rampline.tracking.store import open_tracking

Log = Callable[[str], None]


def evaluate_one(run: str, data: str | None, *, home: Home, log: Log) -> dict[str, Any]:
    """Score the best checkpoint of one run, by MLflow run id or run directory, on its own or on another test set.

    Args:
        run: an MLflow run id, or the path of a run directory.
        data: a data source such as `folder:PATH` with the same classes; the run's own test set if `None`.
        home: where prepared data lies.
        log: gets lines for the user.

    Raises:
        InputError: when there is no such run, or the data does not fit it.
    """
    directory = _find_run_directory(run, home)
    other = None
    if data:
        config = dataclasses.replace(directory.read_config().data, source=data, manual_dir=None)
        other = prepare_dataset(config, home, log=log).directory
    run_evaluation([directory.path], directory.path / "evaluation.log", other_data=other)
    if other:
        return read_json(directory.path / "evaluation-other.json")
    evaluation = read_json(directory.evaluation_file)
    log_evaluation(open_tracking(home), directory, evaluation)
    return evaluation


def _find_run_directory(run: str, home: Home) -> RunDirectory:
    path = Path(run)
    if path.is_dir():
        directory = RunDirectory(path.absolute())
    else:
        try:
            tags = open_tracking(home).get_run(run).data.tags
        except MlflowException as error:
            raise InputError(f"no run {run!r}: give an MLflow run id or the path of a run directory") from error
        directory = RunDirectory(Path(tags.get("rampline.run_dir", "")))
    if not directory.config_file.is_file():
        raise InputError(f"{directory.path} is no run directory: it has no config.json")
    return directory
