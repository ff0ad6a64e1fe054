"""The files that a run draws for MLflow: learning-rate curve, confusion matrix, classification report."""

from __future__ import annotations

import csv
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from rampline.files import csv_cell, read_json, write_json
from rampline.record.run_directory import RunDirectory

# Imported where something is drawn: matplotlib must not delay the first run.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COUNTS_SHOWN = 20  # classes, up to which a number fits into its cell
MOST_NAMES_SHOWN = 60
MOST_CLASSES_DRAWN = 1500  # a cell of more is smaller than a pixel
LEARNING_RATE = "learning_rate.png"
BLUE, ORANGE = "#2b6cb0", "#c05621"
SCORES = ("precision", "recall", "f1-score", "support")

# Its first use on a machine announces the font cache, which nobody can act on.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)


def draw_artifacts(directory: RunDirectory) -> None:
    """Draw into `RUN_DIR/artifacts` what is not there yet, or is older than what it is drawn from."""
    folder = directory.artifacts
    if _is_due(folder / LEARNING_RATE, directory.events_file):
        events = directory.read_events("started", "epoch")
        curves = [event["learning_rate_curve"] for event in events if "learning_rate_curve" in event]
        rates = {event["epoch"]: event["metrics"].get("learning_rate") for event in events if event["event"] == "epoch"}
        recorded = {epoch: rate for epoch, rate in sorted(rates.items()) if rate is not None}
        if curves or recorded:
            draw_learning_rate(folder / LEARNING_RATE, curves[-1] if curves else [], recorded)
    report = folder / "classification_report.json"
    if _is_due(report, directory.evaluation_file):
        evaluation = read_json(directory.evaluation_file)
        names = evaluation["class_names"]
        if len(names) <= MOST_CLASSES_DRAWN:
            draw_confusion_matrix(folder / "confusion_matrix.png", read_confusion_matrix(evaluation).toarray(), names)
        write_classification_report(folder / "classification_report.csv", evaluation["classification_report"])
        write_json(report, evaluation["classification_report"])


def _is_due(path: Path, source: Path) -> bool:
    return source.is_file() and not (path.is_file() and path.stat().st_mtime >= source.stat().st_mtime)


def draw_learning_rate(path: Path, curve: Sequence[Sequence[float]], epochs: Mapping[int, float]) -> None:
    """PNG of the learning rate over epochs.

    Args:
        path: the file.
        curve: `[[epoch, rate], …]` of the schedule, epoch 0 at the first step; may be empty.
        epochs: rate at the end of each epoch (1-based), as it was recorded.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    if curve:
        axes.plot([point[0] for point in curve], [point[1] for point in curve], color=BLUE, label="schedule")
    if epochs:
        line = "" if curve else "-"
        axes.plot(list(epochs), list(epochs.values()), "o", linestyle=line, color=ORANGE, label="recorded per epoch")
    axes.set(xlabel="epoch", ylabel="learning rate")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    _save(figure, path)


def read_confusion_matrix(evaluation: Mapping[str, Any]) -> Any:
    """How often each class was taken for each, from the content of an `evaluation.json`.

    Returns:
        a `csr_array` `(classes, classes) int64` with a row per right class and a column per answer. (`Any`: SciPy's own
        annotations do not tell its sums from arrays.)
    """
    from scipy.sparse import csr_array

    if "confusion_matrix" in evaluation:  # earlier versions wrote all cells
        return csr_array(np.asarray(evaluation["confusion_matrix"], np.int64))
    classes, answers, images = np.asarray(evaluation["confusion_cells"], np.int64).T
    return csr_array((images, (classes, answers)), shape=(len(evaluation["class_names"]),) * 2)


def draw_confusion_matrix(path: Path, counts: ArrayLike, class_names: Sequence[str]) -> None:
    """PNG of a confusion matrix, `counts[true][predicted]`; colours are shares of each true class."""
    from matplotlib.figure import Figure

    matrix = np.asarray(counts, dtype=np.int64)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    size = min(4 + 0.35 * len(matrix), 16)
    figure = Figure(figsize=(size + 1, size), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    axes.set(xlabel="predicted", ylabel="true")
    if len(matrix) <= MOST_NAMES_SHOWN:
        _name_classes(axes, class_names)
    if len(matrix) <= MOST_COUNTS_SHOWN:
        _write_counts(axes, matrix, shares)
    _save(figure, path)


def write_classification_report(path: Path, report: Mapping[str, Any]) -> None:
    """CSV of scikit-learn's report: one row per class and average with precision, recall, f1-score and support.

    The row `accuracy`, which has a single figure, holds it as f1-score, as scikit-learn's text form does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["class", *SCORES])
        for name, scores in report.items():
            row = scores if isinstance(scores, Mapping) else {"f1-score": scores}
            writer.writerow([csv_cell(name), *(row.get(score, "") for score in SCORES)])


def _name_classes(axes: Axes, class_names: Sequence[str]) -> None:
    ticks = range(len(class_names))
    # A class may be called `$100`: that is no formula.
    axes.set_xticks(ticks, labels=class_names, rotation=90, parse_math=False)
    axes.set_yticks(ticks, labels=class_names, parse_math=False)


def _write_counts(axes: Axes, matrix: np.ndarray, shares: np.ndarray) -> None:
    for (row, column), count in np.ndenumerate(matrix):
        if count:
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", fontsize=8, color=color)


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        # Names in a script the font lacks come out as boxes; the figure is still right.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font", category=UserWarning)
        aside = path.with_suffix(".part")  # half a picture would be newer than what it is drawn from
        figure.savefig(aside, format="png")
        aside.replace(path)
