"""Confusion matrix and classification report, equal to scikit-learn's, whose import takes longer than to score."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import numpy as np


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


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)
