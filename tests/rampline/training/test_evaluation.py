"""The answers that a run is scored by."""

import numpy as np
import pytest
import small_models
from role_functions import reset_keras

from rampline.data.dataset import PreparedDataset
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
