"""What a run must show before its model is registered, one check each."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from rampline.data.dataset import PreparedDataset
from rampline.data.quality import count_groups, read_report
from rampline.errors import DatasetError, InputError, RamplineError
from rampline.files import locked, read_json
from rampline.jobs.evaluator import run_evaluation
from rampline.parity.check import ParityResult, result_file
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.registry.candidate import (
    CHAMPION,
    PREDICTIONS,
    Candidate,
    Log,
    Predictions,
    directory_of,
    find_mlflow_run,
    images_trained_on,
)
from rampline.registry.paired_test import PairedComparison, compare_predictions
from rampline.registry.prediction import try_model
from rampline.tracking.delivery import find_run
from rampline.tracking.description import PARITY_TAG

RUN, PARITY, DATA, MODEL, ACCURACY = "run", "parity", "data", "model", "accuracy"


@dataclass(frozen=True, kw_only=True)
class Check:
    """A check, whether it passed, and the reason either way, in one line."""

    name: str
    passed: bool
    reason: str

    def line(self) -> str:
        """For a terminal or a log."""
        return f"{'pass' if self.passed else 'FAIL'}  {self.name:<8}  {self.reason}"


def check_run(candidate: Candidate, model_id: str | None) -> Check:
    """The run is complete and evaluated, and its model is in MLflow."""
    evaluation = candidate.read_evaluation()
    status = candidate.run.info.status
    study = candidate.directory.read_identity().study
    if not candidate.directory.is_complete:
        reason = f"training is not complete: {candidate.directory.path} has no result.json"
    elif evaluation is None:
        reason = f"it is not evaluated: `rampline evaluate {candidate.run_id}` does that"
    elif status != "FINISHED":
        reason = f"its MLflow run is {status}, not FINISHED: `rampline sync {study}` delivers what is missing"
    elif model_id is None:
        reason = f"its model is not in MLflow: `rampline evaluate {candidate.run_id}` logs it"
    else:
        split = "" if evaluation["split"] == "test" else f" (the data has no test split: {evaluation['split']})"
        figures = f"accuracy {evaluation['test_accuracy']:.4f} on {evaluation['examples']:,} images{split}"
        return Check(name=RUN, passed=True, reason=f"complete and evaluated: {figures}")
    return Check(name=RUN, passed=False, reason=reason)


def check_parity_of(client: MlflowClient, candidate: Candidate) -> Check:
    """Its parity check passed; where MLflow and the run directory differ, the worse one counts.

    Of a run that is trained several times, the first training is checked.
    """
    directory, run = candidate.directory, candidate.run
    if first := directory.read_identity().repeat_of:
        directory = RunDirectory(directory.path.with_name(first))
        run = find_run(client, directory)
    file = result_file(directory)
    result = ParityResult.read(file) if file.is_file() else None
    tag = run.data.tags.get(PARITY_TAG) if run else None
    statuses = {status for status in (tag, result.status if result else None) if status}
    of = f"{first}, which it repeats: " if first else ""
    is_single = candidate.directory.read_config().strategy == "single"
    allowed = {"pass", "not_applicable"} if is_single else {"pass"}
    if statuses and statuses <= allowed:
        told = result.sentence() if result else f"MLflow's tag {PARITY_TAG} is pass"
        told = "one replica: there is nothing to compare" if is_single else told
        return Check(name=PARITY, passed=True, reason=of + told)
    return Check(name=PARITY, passed=False, reason=of + _parity_failure(statuses, tag, result))


def _parity_failure(statuses: set[str], tag: str | None, result: ParityResult | None) -> str:
    if not statuses:
        return "it was not checked (parity.steps=0): train it with the check, or its model stays unregistered"
    if result is not None and result.status == "fail":
        return result.sentence()
    if result is not None and result.status == "not_applicable" and "fail" not in statuses:
        return f"nothing shows that it trains as one replica would: {result.sentence()}"
    return f"MLflow's tag {PARITY_TAG} is {tag}: it must be pass"


def check_model(client: MlflowClient, candidate: Candidate, model_id: str | None, *, home: Home) -> Check:
    """The model that MLflow has labels an image in the process that `rampline predict` starts."""
    if model_id is None:
        return Check(name=MODEL, passed=False, reason="it is not in MLflow")
    study = candidate.directory.read_identity().study
    try:
        try_model(client, model_id, study, candidate.directory.path, home=home)
    except RamplineError as error:
        return Check(name=MODEL, passed=False, reason=f"`rampline predict` cannot use it: {error}")
    return Check(name=MODEL, passed=True, reason="loaded from MLflow, it labels an image")


def check_data(candidate: Candidate) -> Check:
    """The data report has no unreadable file, no image or group in two splits, and no image with two labels."""
    try:
        report = read_report(candidate.dataset_directory)
    except DatasetError as error:
        return Check(name=DATA, passed=False, reason=str(error))
    duplicates: Any = report.duplicates
    # By their bytes: one of the labels is wrong.
    classes = duplicates.groupby("sha256")["class"].nunique()
    findings = {
        "files that do not decode": len(report.undecodable),
        "images in more than one split": count_groups(report.repeated("across")),
        "groups in more than one split": count_groups(report.shared_groups),
        "images with more than one label": int((classes > 1).sum()),
    }
    if found := ", ".join(f"{count:,} {what}" for what, count in findings.items() if count):
        reason = f"the data report of {report.source} is not clean: {found} (see {candidate.dataset_directory})"
        return Check(name=DATA, passed=False, reason=reason)
    repeated = count_groups(report.repeated("within"))
    note = f"; {repeated:,} images are more than once in one split" if repeated else ""
    reason = f"{report.source}: all files decode, no image in two splits or with two labels{note}"
    return Check(name=DATA, passed=True, reason=reason)


# What a promotion leaves on the run: its answers, so that they outlive the run directory, and the gate's figures.
RECORD, RECORD_FILE = "promotion", "gate.json"
# On fewer images the test is too weak, however they fall: `unseen_loss` is above `LARGEST_UNSEEN_LOSS`.
FEWEST_UNSEEN = 60
ALL = slice(None)


def check_accuracy(
    client: MlflowClient, candidate: Candidate, champion: ModelVersion | None, *, log: Log
) -> tuple[Check, PairedComparison | None]:
    """Compare the candidate with the champion on the candidate's test images, where there is something to compare.

    A champion of other data is scored on them first, in a process of its own; those that it was trained on are left
    out. Whatever prevents the comparison fails the check, with its reason.
    """
    if champion is None:
        return Check(name=ACCURACY, passed=True, reason="there is no champion to compare with yet"), None
    if candidate.read_evaluation() is None:
        return _not_compared("the run is not evaluated")
    try:
        own = Predictions.read(candidate.directory.predictions_file)
        theirs, unseen = _champion_predictions(client, candidate, champion, log)
    except (RamplineError, MlflowException) as error:
        return _not_compared(f"the champion (version {champion.version}) cannot be scored on its test images: {error}")
    if len(own.labels) != len(theirs.labels) or (own.labels != theirs.labels).any():
        return _not_compared(f"the champion (version {champion.version}) was scored on other examples")
    comparison = compare_predictions(own.labels[unseen], theirs.predicted[unseen], own.predicted[unseen])
    reason = f"{comparison.verdict()} (champion: version {champion.version}): {comparison.sentence()}"
    if left_out := len(own.labels) - comparison.examples:
        reason += f"; {left_out:,} images are left out, because the champion was trained on them"
    return Check(name=ACCURACY, passed=comparison.is_acceptable, reason=reason), comparison


def _not_compared(reason: str) -> tuple[Check, None]:
    return Check(name=ACCURACY, passed=False, reason=f"not compared: {reason}"), None


def _champion_predictions(
    client: MlflowClient, candidate: Candidate, champion: ModelVersion, log: Log
) -> tuple[Predictions, np.ndarray | slice]:
    """The champion's answers on the candidate's test images, and which of these it was not trained on."""
    dataset = candidate.dataset_directory
    name = f"{champion.name} version {champion.version}"
    run = find_mlflow_run(client, champion.run_id or "")
    try:
        directory = directory_of(run, name)
    except InputError:
        return _recorded_predictions(client, run.info.run_id, dataset, name), ALL
    if Path(directory.read_identity().dataset).name == dataset.name and directory.predictions_file.is_file():
        return Predictions.read(directory.predictions_file), ALL
    unseen = _unseen(directory, PreparedDataset.open(dataset))
    return _score(directory, dataset, log), unseen


def _unseen(directory: RunDirectory, dataset: PreparedDataset) -> np.ndarray | slice:
    """Which images of the dataset's evaluation split the run was not trained on.

    Another preparation of a source may have the images elsewhere: where they are split anew, or a table's column
    `split` has changed.

    Raises:
        InputError: when too few are left, or of a source without a test split the run's own data is gone, so that
            nobody knows.
    """
    try:
        seen = images_trained_on(directory, dataset)
    except DatasetError as error:
        if "test" in dataset.splits:
            return ALL
        raise InputError(
            f"the data that it was trained on is gone or damaged, so that nobody knows which of them it has seen: put "
            f"{directory.read_identity().dataset} back, or promote with `--as challenger` and give that version the "
            f"alias {CHAMPION} on MLflow's page"
        ) from error
    if not seen:
        return ALL
    scored = dataset.paths(dataset.evaluation_split)
    unseen = np.array([path not in seen for path in scored])
    if (left := int(unseen.sum())) < FEWEST_UNSEEN:
        raise InputError(
            f"it was trained on {len(scored) - left:,} of these {len(scored):,}, and {left} others are too few to "
            f"compare on: {FEWEST_UNSEEN} are needed"
        )
    return unseen


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


def _score(directory: RunDirectory, dataset: Path, log: Log) -> Predictions:
    """Answers on another dataset; those that are there from the last time are not made again."""
    scores, answers = directory.other_evaluation_file, directory.other_predictions_file
    with locked(directory.evaluation_lock, lambda holder: log(f"waiting for {holder}, which scores the champion")):
        found = read_json(scores) if answers.is_file() and scores.is_file() else {}
        if (found.get("dataset"), found.get("which")) != (dataset.name, "best"):
            run_evaluation([directory.path], directory.path / "evaluation.log", other_data=dataset)
        return Predictions.read(answers)
