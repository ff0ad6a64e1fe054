"""A run's model against the champion, on the same test images."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.cluster.evaluator import run_evaluation
from rampline.errors import InputError, RamplineError
from rampline.files import read_json
from rampline.registry.candidate import PREDICTIONS, Candidate, Predictions, directory_of, find_mlflow_run
from rampline.registry.checks import ACCURACY, Check
from rampline.registry.paired_test import PairedComparison, compare_predictions
from rampline.run_directory import RunDirectory

# What a promotion leaves on the run: its answers, so that they outlive the run directory, and the gate's figures.
RECORD, RECORD_FILE = "promotion", "gate.json"


@dataclass(frozen=True, kw_only=True)
class AccuracyCheck:
    """The check, and what was counted where there was something to compare."""

    check: Check
    comparison: PairedComparison | None = None


def check_accuracy(client: MlflowClient, candidate: Candidate, champion: ModelVersion | None) -> AccuracyCheck:
    """Compare the candidate with the champion on the candidate's test images.

    A champion of other data is scored on them first, in a process of its own. Whatever prevents the comparison fails
    the check, with its reason.
    """
    if champion is None:
        return AccuracyCheck(check=Check(name=ACCURACY, passed=True, reason="there is no champion to compare with yet"))
    if candidate.read_evaluation() is None:
        return _not_compared("the run is not evaluated")
    try:
        own = Predictions.read(candidate.predictions_file)
        theirs = _champion_predictions(client, candidate, champion)
    except (RamplineError, MlflowException) as error:
        return _not_compared(f"the champion (version {champion.version}) cannot be scored on its test images: {error}")
    if len(own.labels) != len(theirs.labels) or (own.labels != theirs.labels).any():
        return _not_compared(f"the champion (version {champion.version}) was scored on other examples")
    comparison = compare_predictions(own.labels, theirs.predicted, own.predicted)
    reason = f"{comparison.verdict()} (champion: version {champion.version}): {comparison.sentence()}"
    check = Check(name=ACCURACY, passed=comparison.is_acceptable, reason=reason)
    return AccuracyCheck(check=check, comparison=comparison)


def _not_compared(reason: str) -> AccuracyCheck:
    return AccuracyCheck(check=Check(name=ACCURACY, passed=False, reason=f"not compared: {reason}"))


def _champion_predictions(client: MlflowClient, candidate: Candidate, champion: ModelVersion) -> Predictions:
    """The champion's answers on the candidate's test images."""
    dataset = candidate.dataset_directory
    name = f"{champion.name} version {champion.version}"
    run = find_mlflow_run(client, champion.run_id or "")
    try:
        directory = directory_of(run, name)
    except InputError:
        return _recorded_predictions(client, run.info.run_id, dataset, name)
    if Path(directory.read_identity().dataset).name == dataset.name and (directory.path / PREDICTIONS).is_file():
        return Predictions.read(directory.path / PREDICTIONS)
    return _score(directory, dataset)


def _recorded_predictions(client: MlflowClient, run_id: str, dataset: Path, name: str) -> Predictions:
    """Those that its own promotion has left in MLflow, if they are on these images."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(client.download_artifacts(run_id, RECORD, folder))
        scored_on = read_json(record / RECORD_FILE)["dataset"]
        if scored_on != dataset.name:
            raise InputError(
                f"{name} was scored on {scored_on}, not on {dataset.name}, and its run directory is not on this machine"
            )
        return Predictions.read(record / PREDICTIONS)


def _score(directory: RunDirectory, dataset: Path) -> Predictions:
    """Answers on another dataset; those that are there from the last time are not made again."""
    scores, answers = directory.path / "evaluation-other.json", directory.path / "predictions-other.csv"
    if not (answers.is_file() and scores.is_file() and read_json(scores).get("dataset") == dataset.name):
        run_evaluation([directory.path], directory.path / "evaluation.log", other_data=dataset)
    return Predictions.read(answers)
