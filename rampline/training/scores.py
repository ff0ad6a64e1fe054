"""What answers on labelled images are worth: confusion matrix, scores per class, calibration, and intervals of them."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np

# Of the calibration error: bins of the certainty, all of one width.
BINS = 15
RESAMPLES, SEED, BOUNDS = 1000, 0, (0.025, 0.975)


def score_answers(labels: np.ndarray, probabilities: np.ndarray, class_names: Sequence[str]) -> dict[str, Any]:
    """All scores, as `evaluation.json` has them.

    Args:
        labels: `(examples,) int`, the right classes; at least one.
        probabilities: `(examples, classes) float32`.
        class_names: of the columns.

    Returns:
        among others `test_balanced_accuracy`, the mean recall of the classes that have images; `mean_certainty`, the
        mean of the largest probability of each image; `intervals`, see `bootstrap_intervals`.
    """
    predictions, certainty = probabilities.argmax(axis=1), probabilities.max(axis=1).astype(np.float64)
    matrix, is_right = confusion_matrix(labels, predictions, len(class_names)), predictions == labels
    likelihood = np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, 1.0)
    images = matrix.sum(axis=1)
    return {
        "examples": len(labels),
        "test_loss": float(-np.log(likelihood).mean()),
        "test_accuracy": float(is_right.mean()),
        "test_balanced_accuracy": float(_ratio(matrix.diagonal(), images)[images > 0].mean()),
        "test_calibration_error": calibration_error(certainty, is_right),
        "mean_certainty": float(certainty.mean()),
        "intervals": bootstrap_intervals(matrix),
        "class_names": list(class_names),
        "confusion_matrix": matrix.tolist(),
        "classification_report": classification_report(matrix, class_names),
    }


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """How often each class was taken for each.

    Args:
        labels: `(examples,) int`, the right classes.
        predictions: `(examples,) int`.
        classes: how many there are.

    Returns:
        `(classes, classes) int64`, a row per right class and a column per predicted one.
    """
    cells = labels.astype(np.int64) * classes + predictions
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def classification_report(matrix: np.ndarray, class_names: Sequence[str]) -> dict[str, Any]:
    """Precision, recall, F1 score and support by class name, their averages, and the accuracy.

    As `sklearn.metrics.classification_report(…, output_dict=True, zero_division=0)`: what would be divided by 0 is 0.
    Only where a class is called as an average is, the average has another name: `accuracy (all classes)`.

    Args:
        matrix: from `confusion_matrix`.
        class_names: of its rows.
    """
    right, support = matrix.diagonal(), matrix.sum(axis=1)
    predicted = matrix.sum(axis=0)
    scores = {
        "precision": _ratio(right, predicted),
        "recall": _ratio(right, support),
        "f1-score": _ratio(2 * right, predicted + support),
    }
    examples = float(support.sum())
    by_class = {
        name: {**{score: float(values[i]) for score, values in scores.items()}, "support": float(support[i])}
        for i, name in enumerate(class_names)
    }
    macro = {score: float(values.mean()) for score, values in scores.items()}
    weighted = {score: float(np.average(values, weights=support)) for score, values in scores.items()}
    averages = {
        "accuracy": float(right.sum() / examples),
        "macro avg": {**macro, "support": examples},
        "weighted avg": {**weighted, "support": examples},
    }
    return by_class | {_free_name(name, by_class): values for name, values in averages.items()}


def _free_name(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += " (all classes)"
    return name


def calibration_error(certainty: np.ndarray, is_right: np.ndarray) -> float:
    """The expected calibration error: how far certainty and accuracy are apart, weighted by images; 0 is ideal.

    Answers are sorted into 15 bins by their certainty, (0, 1/15] to (14/15, 1]; the error is the sum over the bins of
    share of the images * |accuracy - mean certainty|. Naeini et al. 2015, "Obtaining well calibrated probabilities
    using Bayesian binning"; with 15 bins as in Guo et al. 2017, "On calibration of modern neural networks".

    Args:
        certainty: `(examples,) float64`, the probability of each answer.
        is_right: `(examples,) bool`.
    """
    bins = np.digitize(certainty, np.arange(1, BINS) / BINS, right=True)
    return float(np.abs(np.bincount(bins, is_right - certainty)).sum() / len(certainty))


def bootstrap_intervals(matrix: np.ndarray) -> dict[str, Any]:
    """The 95 % intervals of scores: percentiles over 1,000 resamples of the images (Efron 1979), with a fixed seed.

    To resample images is to draw the cells of `matrix` from a multinomial distribution. Of a class, the scores need
    three numbers: its images, the right answers among them, and the images of other classes that are taken for it.
    These follow a multinomial and two binomial distributions: 1,000 classes are 3,000 draws, and not a million.

    Args:
        matrix: from `confusion_matrix`, of at least one image.

    Returns:
        `[low, high]` of `test_accuracy` and `test_balanced_accuracy`; of `recall` and `f1-score` a list of them, by
        class, with None for a class without images. A resample without images of a class says nothing of its recall.
    """
    all_images = matrix.sum(axis=1)
    present = np.flatnonzero(all_images)
    images, right = all_images[present], matrix.diagonal()[present]
    mistaken, examples = matrix.sum(axis=0)[present] - right, images.sum()
    random = np.random.default_rng(SEED)
    drawn = random.multinomial(examples, images / examples, size=RESAMPLES)
    drawn_right = random.binomial(drawn, right / images)
    drawn_mistaken = random.binomial(examples - drawn, mistaken / np.maximum(examples - images, 1))
    recalls = _ratio(drawn_right, drawn, np.nan)
    by_class = {"recall": recalls, "f1-score": _ratio(2 * drawn_right, drawn + drawn_right + drawn_mistaken, np.nan)}
    overall = {
        "test_accuracy": drawn_right.sum(axis=1) / examples,
        "test_balanced_accuracy": np.nanmean(recalls, axis=1),
    }
    intervals: dict[str, Any] = {name: np.quantile(values, BOUNDS).tolist() for name, values in overall.items()}
    for name, values in by_class.items():
        intervals[name] = [None] * len(matrix)
        for label, bounds in zip(present, np.nanquantile(values, BOUNDS, axis=0).T.tolist(), strict=True):
            intervals[name][label] = bounds
    return intervals


def _ratio(above: np.ndarray, below: np.ndarray, otherwise: float = 0.0) -> np.ndarray:
    return np.divide(above, below, out=np.full(below.shape, otherwise), where=below > 0)
