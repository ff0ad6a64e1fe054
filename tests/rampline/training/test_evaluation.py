"""The answers that a run is scored by."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import small_models
from role_functions import reset_keras

from rampline.data.dataset import PreparedDataset
from rampline.registry.candidate import Predictions
from rampline.training import evaluation


def test_a_batch_that_memory_does_not_take_is_halved(digits: PreparedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = small_models.large(digits.image_shape, len(digits.class_names)), digits.evaluation_split
    assert digits.splits[split] > 28
    monkeypatch.setattr(evaluation, "BATCH_SIZE", 14)
    labels, probabilities = evaluation.predict(model, digits, split)
    # There is memory for 14 examples at once.
    monkeypatch.setattr(evaluation, "BATCH_SIZE", 28)
    again, in_halves = evaluation.predict(model, digits, split)
    np.testing.assert_array_equal(again, labels)
    np.testing.assert_array_equal(in_halves, probabilities)
    reset_keras()


def test_a_carriage_return_in_a_path_begins_no_row(tmp_path: Path) -> None:
    paths, file = ["plain.png", "a\rb.png", "a\r=cmd|' /C calc'!A0.png"], tmp_path / "predictions.csv"
    dataset: Any = SimpleNamespace(evaluation_split="test", paths=lambda _: paths)
    labels, probabilities = np.array([0, 1, 1]), np.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]], np.float32)
    evaluation._write_predictions(dataset, labels, probabilities, file)
    assert pd.read_csv(file)["path"].tolist() == paths
    assert file.read_bytes().splitlines()[1] == b'0,"plain.png",0,0,0.75'
    answers = Predictions.read(file)
    assert (answers.labels.tolist(), answers.predicted.tolist()) == ([0, 1, 1], [0, 0, 1])


def test_answers_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("index,path,label,prediction,probability\n0,a.png,1,0,0.75\n")
    answers = Predictions.read(tmp_path / "predictions.csv")
    assert (answers.labels.tolist(), answers.predicted.tolist()) == ([1], [0])
