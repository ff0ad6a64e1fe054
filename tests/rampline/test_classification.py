"""The scores are scikit-learn's."""

from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from rampline.classification import classification_report, confusion_matrix


@pytest.mark.parametrize("case", ["all classes", "a class without examples", "a class never predicted", "all wrong"])
def test_matrix_and_report_are_scikit_learns(case: str) -> None:
    random = np.random.default_rng(7)
    labels = random.integers(0, 5, 400).astype(np.int32)
    predictions = np.where(random.random(400) < 0.7, labels, random.integers(0, 5, 400))
    if case == "a class without examples":
        labels, predictions = labels[labels != 2], predictions[labels != 2]
    elif case == "a class never predicted":
        predictions[predictions == 3] = 1
    elif case == "all wrong":
        predictions = (labels + 1) % 5
    numbers, names = list(range(5)), ["zero", "one", "two", "three", "four"]
    expected = metrics.confusion_matrix(labels, predictions, labels=numbers)
    matrix = confusion_matrix(labels, predictions, 5)
    np.testing.assert_array_equal(matrix, expected)
    report = classification_report(matrix, names)
    options: dict[str, Any] = {"output_dict": True, "zero_division": 0}  # scikit-learn's own types are too narrow
    theirs: Any = metrics.classification_report(labels, predictions, labels=numbers, target_names=names, **options)
    assert list(report) == list(theirs)
    for key, value in theirs.items():
        assert report[key] == pytest.approx(value, abs=1e-12)
