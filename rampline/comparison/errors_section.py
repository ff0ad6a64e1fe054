"""The report's section on right and wrong answers: confusion matrix, accuracy per class, and the worst errors.

It is about the recommended run and another one to hold it to, from what their evaluation has left in MLflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from mlflow import MlflowClient

from rampline.comparison.charts import COLOR, CUT, INK, Spec, axis
from rampline.comparison.mlflow_reader import read_artifact
from rampline.comparison.recommendation import recommend
from rampline.comparison.runs import Comparison, is_missing, written
from rampline.comparison.section import Chart, Picture, ReportTable, Section
from rampline.files import read_json
from rampline.record.units import write_accuracy, write_count
from rampline.tracking.artifacts import read_confusion_matrix

EVALUATION, ERRORS = "evaluation.json", "worst_errors.json"
MOST_CELLS = 60  # classes of a confusion matrix, beyond which no reader finds a cell
MOST_COUNTS = 16  # classes, up to which its cells have room for their numbers
MOST_PAIRS = 3
UNBALANCED = 2  # times as many images as the smallest class: then the accuracy is that of the largest ones
MOST_CLASSES = 40  # rows; those of the lowest accuracy
CELL = 22  # pixels
SHORT = 4  # characters of a name that fits below its column
MOST_RUNS = 2
RIGHT, WRONG = "var(--run-0)", "var(--run-1)"
SHADES = {"domain": [0, 1], "range": [0.12, 0.7], "type": "sqrt"}
SHOWN = {"label": "class", "answer": "answer", "count": "images", "images": "of"}
CELLS: Spec = {
    "mark": {"type": "rect"},
    "encoding": {
        "color": COLOR,
        "opacity": {"field": "share", "type": "quantitative", "legend": None, "scale": SHADES},
        "tooltip": [{"field": field, "title": words} for field, words in SHOWN.items()],
    },
}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the evaluation of a run has found.

    Attributes:
        matrix: see `read_confusion_matrix`.
        errors: the wrong answers that are most certain, as `worst_errors.json` has them; none by earlier versions.
    """

    run: str
    class_names: tuple[str, ...]
    matrix: Any
    errors: tuple[dict[str, Any], ...]

    @cached_property
    def accuracies(self) -> list[float]:
        """Share of right answers on the images of each class; NaN without images."""
        images = self.matrix.sum(axis=1)
        return np.where(images > 0, self.matrix.diagonal() / np.maximum(images, 1), np.nan).tolist()


def read_scores(client: MlflowClient, comparison: Comparison) -> list[Scores]:
    """Those of the recommended run, and of the reference; without any that MLflow does not have.

    Where these are one run, or none, the most accurate one takes a place.
    """
    rows = {row["run"]: row for row in comparison.finished if not is_missing(row["test_accuracy"])}
    best = max(rows, key=lambda run: rows[run]["test_accuracy"], default="")
    wanted = dict.fromkeys((recommend(comparison).fastest, comparison.reference, best))
    chosen = [run for run in wanted if run in rows][:MOST_RUNS]
    found = [_read(client, run, rows[run]["answers_of"]) for run in chosen]
    return [scores for scores in found if scores is not None]


def _read(client: MlflowClient, run: str, run_id: str) -> Scores | None:
    evaluation, errors = (read_artifact(client, run_id, name, read_json) for name in (EVALUATION, ERRORS))
    if evaluation is None:
        return None
    return Scores(
        run=run,
        class_names=tuple(evaluation["class_names"]),
        matrix=read_confusion_matrix(evaluation),
        errors=tuple(errors or ()),
    )


def make_errors_section(scores: Sequence[Scores]) -> Section | None:
    """Confusion matrices, accuracies per class and worst errors; None where no run was evaluated."""
    if not scores:
        return None
    first, counts = scores[0], len(scores[0].class_names)
    return Section(
        id="errors",
        title="Right and wrong answers",
        sentences=tuple(map(_tell, scores)),
        tables=(_class_table(scores),),
        charts=tuple(map(_matrix_chart, scores)) if counts <= MOST_CELLS else (),
        pictures=tuple(map(_picture, first.errors)),
        gallery=f"Worst errors of {first.run}",
        about="On the scored images, by the checkpoint of the best epoch. The worst errors are the wrong answers that "
        "the network is most certain of; all answers, with the paths of the images, are in predictions.csv.",
    )


def _tell(scores: Scores) -> str:
    """How many answers are right, and which classes are taken for which."""
    matrix, names = scores.matrix, scores.class_names
    told = f"{scores.run}: {write_count(matrix.trace())} of {write_count(matrix.sum())} answers are right"
    some = [count for count in matrix.sum(axis=1).tolist() if count]
    if max(some, default=0) > UNBALANCED * min(some, default=0):
        told += f" (balanced accuracy {write_accuracy(float(np.nanmean(scores.accuracies)))})"
    cells = matrix.tocoo()
    wrong = np.where(cells.row == cells.col, 0, cells.data)
    places = np.argsort(-wrong, kind="stable")[:MOST_PAIRS]
    images = [write_count(count) for count in matrix.sum(axis=1)]
    pairs = [
        f"{names[label]} for {names[answer]} ({write_count(count)} of {images[label]})"
        for label, answer, count in zip(cells.row[places], cells.col[places], wrong[places], strict=True)
        if count
    ]
    return f"{told}; most often it takes {', '.join(pairs)}." if pairs else f"{told}."


def _class_table(scores: Sequence[Scores]) -> ReportTable:
    """A row per class, the lowest accuracy of the first run on top."""
    first = scores[0]
    images = first.matrix.sum(axis=1)
    # Those of other data may have as many classes, and other images of each.
    same = (each for each in scores if each.class_names == first.class_names)
    alike = [each for each in same if (each.matrix.sum(axis=1) == images).all()]
    order = np.argsort(first.accuracies, kind="stable")
    left_out = len(order) - MOST_CLASSES
    return ReportTable(
        title="Accuracy per class",
        head=("class", "images", *(each.run for each in alike)),
        rows=tuple(
            (
                first.class_names[label],
                write_count(images[label]),
                *(written(each.accuracies[label], write_accuracy) for each in alike),
            )
            for label in order[:MOST_CLASSES].tolist()
        ),
        note=f"… and {left_out} classes of no lower accuracy, or without images." if left_out > 0 else "",
    )


def _matrix_chart(scores: Scores) -> Chart:
    names, matrix, images = scores.class_names, scores.matrix.toarray(), scores.matrix.sum(axis=1)
    cells = [
        {
            "label": names[label],
            "answer": names[answer],
            "count": int(matrix[label, answer]),
            "images": int(images[label]),
            "share": float(matrix[label, answer] / images[label]),
            "color": RIGHT if label == answer else WRONG,
        }
        for label, answer in np.argwhere(matrix).tolist()
    ]
    options: Spec = {"kind": "nominal", "scale": {"domain": list(names)}, "domain": False}
    options |= {"labelExpr": CUT, "labelLimit": 0}
    angle = 0 if max(map(len, names)) <= SHORT else -90
    counts = {"mark": {"type": "text"}, "encoding": {"text": {"field": "count"}, "color": {"value": INK}}}
    spec: Spec = {
        "data": {"values": cells},
        "height": CELL * len(names),
        "encoding": {
            "x": axis("answer", "answer", **options, labelAngle=angle, titleAnchor="start"),
            "y": axis("label", "class", **options),
        },
        "layer": [CELLS, *([counts] if len(names) <= MOST_COUNTS else [])],
    }
    return Chart(
        title=f"Confusion matrix of {scores.run}",
        caption="A row per class of the images, a column per answer; the darker, the larger the share of its row.",
        spec=spec,
        legend=(("right", RIGHT), ("wrong", WRONG)),
    )


def _picture(error: dict[str, Any]) -> Picture:
    answer = f"{error['prediction']} instead of {error['label']}"
    return Picture(png=error["png"], lines=(answer, f"{100 * error['probability']:.1f} % certain", error["path"]))
