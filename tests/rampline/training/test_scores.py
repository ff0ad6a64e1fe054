"""The scores are scikit-learn's, the calibration error as by hand, the intervals those of a plain bootstrap."""

import json
import time
from typing import Any

import numpy as np
import pytest
from sklearn import metrics

from rampline.training.evaluation import (
    calibration_error,
    classification_report,
    confusion_matrix,
    score_answers,
    score_intervals,
)


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


def test_figures_by_hand() -> None:
    """Five cats, three of them right; one dog, right; no bird, but one cat is taken for one."""
    probabilities = np.array(
        [[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.3, 0.5, 0.2], [0.1, 0.1, 0.8], [0.0, 1.0, 0.0]],
        np.float32,
    )
    scores = score_answers(np.array([0, 0, 0, 0, 0, 1], np.int32), probabilities, ("cat", "dog", "bird"))
    assert scores["confusion_cells"] == [[0, 0, 3], [0, 1, 1], [0, 2, 1], [1, 1, 1]]
    assert scores["test_accuracy"] == pytest.approx(4 / 6)
    assert scores["test_balanced_accuracy"] == pytest.approx((3 / 5 + 1) / 2)
    assert scores["test_loss"] == pytest.approx(-np.log([0.9, 0.8, 0.7, 0.3, 0.1, 1.0]).mean())
    # Bins: 0.9 | 0.8 twice, one right | 0.7 | 0.5, wrong | 1.0
    assert scores["test_calibration_error"] == pytest.approx((0.1 + 0.6 + 0.3 + 0.5 + 0.0) / 6)
    assert scores["mean_certainty"] == pytest.approx(4.7 / 6)
    intervals = scores["intervals"]
    assert [bounds is None for bounds in intervals["recall"]] == [False, False, True]
    assert [bounds is None for bounds in intervals["f1-score"]] == [False, False, True]
    # All that is called a cat is one.
    assert [bounds is None for bounds in intervals["precision"]] == [True, False, True]
    assert json.loads(json.dumps(scores)) == scores


def plain_bootstrap(labels: np.ndarray, predictions: np.ndarray, classes: int, resamples: int) -> dict[str, Any]:
    """As it is written in books: draw images, count again, take the percentiles."""
    random, found = np.random.default_rng(99), []
    for _ in range(resamples):
        drawn = random.integers(0, len(labels), len(labels))
        matrix = confusion_matrix(labels[drawn], predictions[drawn], classes)
        right, images, answers = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
        with np.errstate(invalid="ignore"):
            precision, recall, f1 = right / answers, right / images, 2 * right / (images + answers)
        found.append([right.sum() / len(labels), np.nanmean(recall), *recall, *f1, *precision])
    low, high = np.nanquantile(found, (0.025, 0.975), axis=0)
    bounds = np.stack([low, high], axis=1)
    return {
        "test_accuracy": bounds[0],
        "test_balanced_accuracy": bounds[1],
        "recall": bounds[2 : 2 + classes],
        "f1-score": bounds[2 + classes : 2 + 2 * classes],
        "precision": bounds[2 + 2 * classes :],
    }


@pytest.mark.parametrize("images", [(120, 60, 30, 8), (50, 50, 50, 50), (300, 1, 2, 3)])
def test_intervals_are_those_of_a_plain_bootstrap(images: tuple[int, ...]) -> None:
    """Percentiles of 1,000 resamples are drawn themselves: their standard error is 2 % of the interval, as a rule."""
    random = np.random.default_rng(3)
    labels = np.repeat(np.arange(4), images)
    predictions = np.where(random.random(len(labels)) < 0.75, labels, random.integers(0, 4, len(labels)))
    plain = plain_bootstrap(labels, predictions, 4, 8000)
    matrix = confusion_matrix(labels, predictions, 4)
    found = score_intervals(matrix)
    assert found == score_intervals(matrix)
    for name in ("test_balanced_accuracy", "f1-score", "precision"):
        bounds = found[name] if name in ("f1-score", "precision") else [found[name]]
        for own, (low, high) in zip(bounds, plain[name].reshape(-1, 2), strict=True):
            assert (own is None) == (low == high), name
            assert own is None or np.abs(np.array(own) - (low, high)).max() <= 0.12 * (high - low) + 1e-9, name


def test_shares_of_known_counts_have_wilsons_interval() -> None:
    found = score_intervals(np.diag([3, 36, 321]))
    assert found["recall"][0] == pytest.approx([0.4385, 1.0], abs=1e-4)
    assert found["recall"][1] == pytest.approx([0.9036, 1.0], abs=1e-4)
    assert found["test_accuracy"] == pytest.approx([0.9894, 1.0], abs=1e-4)
    # All resamples are alike, and cannot tell how far another sample may be.
    assert (found["test_balanced_accuracy"], found["f1-score"], found["precision"]) == (None, [None] * 3, [None] * 3)


@pytest.mark.parametrize(
    ("certainty", "is_right", "expected"),
    [
        ([1.0] * 4, [1, 1, 1, 0], 0.25),  # always certain: a bin with all images
        ([0.75] * 4, [1, 1, 1, 0], 0.0),
        ([1 / 15, 1 / 15 + 1e-9], [1, 0], ((1 - 1 / 15) + 1 / 15) / 2),  # a bin has its upper bound, and not its lower
        ([0.62, 0.64], [1, 0], abs(1 - 1.26) / 2),  # in one bin errors of different signs make up for each other
        ([0.3], [0], 0.3),
    ],
)
def test_calibration_error(certainty: list[float], is_right: list[int], expected: float) -> None:
    assert calibration_error(np.array(certainty), np.array(is_right, bool)) == pytest.approx(expected, abs=1e-8)


def test_calibration_error_goes_through_bins_as_it_is_defined() -> None:
    random = np.random.default_rng(11)
    certainty = random.random(500)
    is_right = random.random(500) < certainty**2
    expected = 0.0
    for number in range(15):
        inside = (certainty > number / 15) & (certainty <= (number + 1) / 15)
        expected += inside.mean() * abs(is_right[inside].mean() - certainty[inside].mean())
    assert calibration_error(certainty, is_right) == pytest.approx(expected)


def test_one_image() -> None:
    scores = score_answers(np.array([1]), np.array([[0.25, 0.75]], np.float32), ("a", "b"))
    assert scores["intervals"]["recall"] == [None, pytest.approx([0.2065, 1.0], abs=1e-4)]
    assert scores["intervals"]["test_balanced_accuracy"] is None
    assert scores["test_calibration_error"] == pytest.approx(0.25)
    wrong = score_answers(np.array([0]), np.array([[0.25, 0.75]], np.float32), ("a", "b"))
    assert wrong["intervals"]["recall"] == [pytest.approx([0.0, 0.7935], abs=1e-4), None]
    assert wrong["intervals"]["f1-score"] == [None, None]
    assert wrong["intervals"]["precision"] == [None, None]  # "a" is never answered, and "b" has no images
    assert (wrong["test_accuracy"], wrong["test_balanced_accuracy"]) == (0.0, 0.0)


def test_answers_that_are_no_numbers_have_no_calibration() -> None:
    probabilities = np.full((3, 2), np.nan, np.float32)
    assert np.isnan(score_answers(np.array([0, 1, 1]), probabilities, ("a", "b"))["test_calibration_error"])


def test_a_thousand_classes_cost_less_than_the_evaluation() -> None:
    """0.6 s of a processor, and 50 MB: the cells of the matrix are a million, those that are drawn three thousand."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 1000, 50_000)
    matrix = confusion_matrix(labels, np.where(random.random(50_000) < 0.8, labels, 0), 1000)
    began = time.process_time()
    found = score_intervals(matrix)
    assert time.process_time() - began < 3
    low, high = found["test_accuracy"]
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(0.8 * 0.2 / 50_000), rel=0.1)
