"""A run whose model may be registered: its run directory, its MLflow run, and what both hold."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.entities import LoggedModelStatus, Run
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.credentials import first_line
from rampline.data.dataset import PreparedDataset
from rampline.data.sources import place_of
from rampline.data.sources.source import has_absolute_path
from rampline.errors import DatasetError, InputError
from rampline.files import read_json
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.tracking.delivery import find_run, logged_run_id
from rampline.tracking.reconciliation import MODEL_NAME
from rampline.tracking.store import TrackingError

Log = Callable[[str], None]
CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous-champion"
# MLflow's notation: an alias behind @, or a version behind /. The scheme may be left out where there is an alias.
_NOTATION = re.compile(r"(?:models:/)?(?P<name>[^/@]+)@(?P<alias>[^/@]+)|models:/(?P<named>[^/@]+)/(?P<version>\d+)")


@dataclass(frozen=True, kw_only=True)
class ModelReference:
    """A version of a registered model, by alias or by number; exactly one of the two is set."""

    name: str
    alias: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.alias}" if self.alias else f"{self.name} version {self.version}"


def registered_name(study: str) -> str:
    """The registered model of a study, such as `rampline-digits`."""
    return f"rampline-{study}"


def parse_reference(text: str) -> ModelReference | None:
    """What `models:/NAME@ALIAS`, `NAME@ALIAS` or `models:/NAME/VERSION` names; `None` for any other text."""
    if match := _NOTATION.fullmatch(text):
        return ModelReference(
            name=match["name"] or match["named"], alias=match["alias"] or "", version=match["version"] or ""
        )
    return None


def find_version(client: MlflowClient, reference: ModelReference) -> ModelVersion | None:
    """The version; `None` where the registry has no such model, alias or version.

    Raises:
        TrackingError: when the registry cannot be asked.
    """
    try:
        if reference.alias:
            return client.get_model_version_by_alias(reference.name, reference.alias)
        return client.get_model_version(reference.name, reference.version)
    except MlflowException as error:
        # An alias that a model does not have is a wrong parameter to MLflow, a model that is not there is missing.
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise TrackingError(f"MLflow's model registry cannot be asked for {reference}: {first_line(error)}") from error


def get_version(client: MlflowClient, reference: ModelReference) -> ModelVersion:
    """The version that must be there.

    Raises:
        InputError: when there is none.
        TrackingError: when the registry cannot be asked.
    """
    version = find_version(client, reference)
    if version is None:
        raise InputError(f"no model {reference} in MLflow: `rampline promote RUN_ID` registers one")
    return version


PREDICTIONS = "predictions.csv"


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Labels and predicted labels of a dataset's evaluation split, each (examples,) int, in its order."""

    labels: np.ndarray
    predicted: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Predictions:
        """From a file that the evaluation has written."""
        table = pd.read_csv(path)
        return cls(labels=table["label"].to_numpy(), predicted=table["prediction"].to_numpy())


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A run in both its forms."""

    directory: RunDirectory
    run: Run

    @property
    def run_id(self) -> str:
        """Of the MLflow run."""
        return self.run.info.run_id

    @property
    def dataset_directory(self) -> Path:
        """Where the prepared dataset lies that it was trained on; the folder's name is made from the content."""
        return Path(self.directory.read_identity().dataset)

    def read_evaluation(self) -> dict[str, Any] | None:
        """Scores of its best checkpoint; `None` before they were made."""
        file = self.directory.evaluation_file
        return read_json(file) if file.is_file() and self.directory.predictions_file.is_file() else None


def find_candidate(client: MlflowClient, run: str) -> Candidate:
    """The run of an MLflow run id, a run directory, or a registered model such as `rampline-digits@champion`.

    Raises:
        InputError: when there is no such run, or one of its two forms is missing here.
    """
    path = Path(run)
    if path.is_dir():
        directory = open_run_directory(path.absolute())
        found = find_run(client, directory)
        if found is None:
            study = directory.read_identity().study
            raise InputError(f"{directory.path} has no run in MLflow: `rampline sync {study}` delivers it")
        return Candidate(directory=directory, run=found)
    found = find_mlflow_run(client, run)
    return Candidate(directory=directory_of(found, run), run=found)


def find_mlflow_run(client: MlflowClient, run: str) -> Run:
    """The MLflow run of a run id or a registered model.

    Raises:
        InputError: when there is none.
    """
    reference = parse_reference(run)
    run_id = (get_version(client, reference).run_id if reference else run) or ""
    try:
        return client.get_run(run_id)
    except MlflowException as error:
        known = "an MLflow run id, the path of a run directory, or a model such as models:/rampline-STUDY@champion"
        raise InputError(f"no run {run!r}: give {known}") from error


def directory_of(run: Run, name: str) -> RunDirectory:
    """The run directory of an MLflow run.

    A name of an execution may be that of several: in other homes, or after each other in one. The folder must say that
    it was logged to this MLflow run.

    Raises:
        InputError: when it is not on this machine; `name` is what the user calls the run.
    """
    path = run.data.tags.get("rampline.run_dir")
    if path is None:
        raise InputError(f"{name} is no training run: its MLflow run {run.info.run_id} has no tag rampline.run_dir")
    # Of a home that was moved or copied it is in this one.
    moved = Home.from_environment().runs.joinpath(*Path(path).parts[-3:])
    # `Path.is_dir` raises where another user's folder may not be looked into.
    found = [RunDirectory(place) for place in (moved, Path(path)) if os.path.isdir(place)]
    if not found:
        raise InputError(
            f"{name} was trained in {path}, which is not on this machine (another one, or it was deleted): "
            "its checkpoints are needed"
        )
    own = next((directory for directory in found if logged_run_id(directory) == run.info.run_id), None)
    if own is None:
        raise InputError(
            f"{name} was trained in {path}, and {found[0].path} is not that of MLflow run {run.info.run_id}: another "
            "run has this name, or its execution was delivered to another MLflow since (`rampline sync` leads it back)"
        )
    return open_run_directory(own.path)


def open_run_directory(path: Path) -> RunDirectory:
    """A run directory that exists.

    Raises:
        InputError: when the folder is none.
    """
    directory = RunDirectory(path)
    if not directory.config_file.is_file():
        raise InputError(f"{path} is no run directory: it has no config.json")
    return directory


def logged_model_id(client: MlflowClient, run: Run) -> str | None:
    """Id of the model that was logged last of those complete in MLflow."""
    outputs = run.outputs.model_outputs if run.outputs else []
    models = [client.get_logged_model(output.model_id) for output in outputs]
    ready = [model for model in models if model.name == MODEL_NAME and model.status == LoggedModelStatus.READY]
    return max(ready, key=lambda model: model.creation_timestamp).model_id if ready else None


def images_trained_on(directory: RunDirectory, dataset: PreparedDataset) -> set[str]:
    """Paths of the images in the dataset's evaluation split that the run was trained on; none of another source.

    Raises:
        DatasetError: when the run's own data is gone or damaged.
    """
    source, place = directory.read_config().data.source, dataset.place or place_of(dataset.source)
    try:
        own = PreparedDataset.open(Path(directory.read_identity().dataset))
    except DatasetError:
        if place != place_of(source):
            return set()
        raise
    # The same images may have been prepared before where they lay then: the source, if it is absolute, is right, too.
    places = {own.place or place_of(source), place_of(source) if has_absolute_path(source) else ""}
    if place not in places:
        return set()
    return {*own.paths("train")} & {*dataset.paths(dataset.evaluation_split)}
