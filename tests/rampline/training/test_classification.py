"""The scores are scikit-learn's."""

from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from rampline.training.evaluation import classification_report, confusion_matrix


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


def test_a_class_may_be_called_as_an_average_is() -> None:
    names = ["accuracy", "macro avg", "weighted avg", "accuracy (all classes)"]
    report = classification_report(np.diag([3, 2, 4, 5]) + np.eye(4, k=1, dtype=int), names)
    averages = [f"{name} (all classes)" for name in ("accuracy (all classes)", "macro avg", "weighted avg")]
    assert list(report) == names + averages
    assert [report[name]["support"] for name in names] == [4, 3, 5, 5]
    assert report[averages[0]] == pytest.approx(14 / 17)
