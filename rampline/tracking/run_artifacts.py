"""What a run directory's files become in MLflow: data report, learning-rate curve, evaluation and model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import RunTag
from mlflow.tracking import MlflowClient

from rampline.data.dataset import PreparedDataset
from rampline.files import write_json
from rampline.metrics import Source, to_log
from rampline.run_directory import RunDirectory
from rampline.tracking.artifacts import draw_confusion_matrix, draw_learning_rate, write_classification_report
from rampline.tracking.experiment import NOTE_TAG
from rampline.tracking.figures import log_figures
from rampline.tracking.mlflow_run import find_run
from rampline.tracking.model import ModelMetadata, log_model
from rampline.tracking.run_note import describe_run
from rampline.tracking.store import STORE_ERRORS, TrackingError, first_line

ANSWERS_TAG = "rampline.answers"
DATA_REPORT = ("data_report.json", "data_report.csv", "undecodable.csv", "duplicates.csv")


def log_data_report(client: MlflowClient, run_id: str, dataset: PreparedDataset) -> None:
    """Log the report on the data that the run is trained with."""
    for name in DATA_REPORT:
        _log_file(client, run_id, dataset.directory / name, "data_report")


def log_learning_rate(client: MlflowClient, run_id: str, run_directory: RunDirectory) -> None:
    """Draw the learning rate into `RUN_DIR/artifacts/learning_rate.png` and log it; nothing before the first epoch."""
    events = run_directory.read_events("started", "epoch")
    curves = [event["learning_rate_curve"] for event in events if "learning_rate_curve" in event]
    rates = {event["epoch"]: event["metrics"].get("learning_rate") for event in events if event["event"] == "epoch"}
    recorded = {epoch: rate for epoch, rate in sorted(rates.items()) if rate is not None}
    if curves or recorded:
        path = run_directory.path / "artifacts" / "learning_rate.png"
        draw_learning_rate(path, curves[-1] if curves else [], recorded)
        _log_file(client, run_id, path)


def log_evaluation(client: MlflowClient, run_directory: RunDirectory, evaluation: Mapping[str, Any]) -> None:
    """Log scores, confusion matrix, classification report, summary and model on the directory's run, in any state.

    Raises:
        TrackingError: when MLflow has no run of this directory, or refuses.
    """
    try:
        run_id = find_run(client, run_directory)
        if run_id is None:
            raise TrackingError(f"{run_directory.path} has no run in MLflow")
        figures = to_log(Source.EVALUATION, evaluation)
        log_figures(client, run_id, figures, timestamp_seconds=modified_at(run_directory.evaluation_file))
        tags = {"rampline.test_split": evaluation["split"], NOTE_TAG: describe_run(run_directory)}
        predictions = run_directory.path / "predictions.csv"
        if predictions.is_file():
            # Two runs of one digest answer alike on every image, with the same probabilities.
            tags[ANSWERS_TAG] = hashlib.sha256(predictions.read_bytes()).hexdigest()[:16]
        client.log_batch(run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        client.log_artifacts(run_id, str(_draw_evaluation(run_directory, evaluation)))
        for path in (run_directory.evaluation_file, predictions, run_directory.path / "model_summary.txt"):
            _log_file(client, run_id, path)
        _log_model(client, run_id, run_directory)
    except STORE_ERRORS as error:
        raise TrackingError(f"{run_directory.path} cannot be logged to MLflow: {first_line(error)}") from error


def modified_at(path: Path) -> float | None:
    """Unix seconds of a file: the fixed time of the figures in it, so that logging them again is the same point."""
    return path.stat().st_mtime if path.is_file() else None


def _draw_evaluation(run_directory: RunDirectory, evaluation: Mapping[str, Any]) -> Path:
    folder, report = run_directory.path / "artifacts", evaluation["classification_report"]
    draw_confusion_matrix(folder / "confusion_matrix.png", evaluation["confusion_matrix"], evaluation["class_names"])
    write_classification_report(folder / "classification_report.csv", report)
    write_json(folder / "classification_report.json", report)
    return folder


def _log_model(client: MlflowClient, run_id: str, run_directory: RunDirectory) -> None:
    model_file = run_directory.path / "model.keras"
    if model_file.is_file():
        dataset = PreparedDataset.open(Path(run_directory.read_identity().dataset))
        log_model(client, run_id, model_file, ModelMetadata.of(dataset, run_directory.read_config().model.name))


def _log_file(client: MlflowClient, run_id: str, path: Path, folder: str | None = None) -> None:
    if path.is_file():
        client.log_artifact(run_id, str(path), folder)
