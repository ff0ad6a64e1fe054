"""What the runs answered on each test image, so that the difference of two accuracies is taken image by image."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from rampline.registry.candidate import PREDICTIONS, Predictions
from rampline.registry.paired_test import PairedComparison, compare_predictions

# The most accurate runs: those that a recommendation is among, also in an execution of thousands.
MOST_READ = 20

Answers = Mapping[str, Predictions]


def read_answers(client: MlflowClient, runs: pd.DataFrame) -> dict[str, Predictions]:
    """The answers of the most accurate of these runs, by name; of runs that have none in MLflow, nothing."""
    logged = pd.DataFrame(runs[runs["answers"] != ""]).sort_values("test_accuracy", ascending=False, kind="stable")
    best = logged.head(MOST_READ).to_dict("records")
    if len(best) < 2:
        return {}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for row in best:
            place = Path(folder) / row["run_id"]
            place.mkdir()
            try:
                found[row["run"]] = Predictions.read(
                    Path(client.download_artifacts(row["run_id"], PREDICTIONS, str(place)))
                )
            except (MlflowException, OSError):
                continue  # without them the interval is wider, and says so
    return found


def have_same_answers(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two runs gave the same answers with the same probabilities: they are the same model, bit by bit."""
    return bool(row["answers"]) and row["answers"] == other["answers"]


def pair(answers: Answers, run: str, other: str) -> PairedComparison | None:
    """`run` against `other` on the same images; None where the answers of one are not there."""
    if run not in answers or other not in answers:
        return None
    new, old = answers[run], answers[other]
    if len(new.labels) != len(old.labels) or (new.labels != old.labels).any():
        return None
    return compare_predictions(new.labels, old.predicted, new.predicted)
