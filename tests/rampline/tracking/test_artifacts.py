"""Pictures that show what they are given, and a report that a spreadsheet opens."""

import csv
import warnings

import matplotlib.image
import numpy as np
import pytest

from rampline.files import write_json
from rampline.record.run_directory import RunDirectory
from rampline.tracking.artifacts import (
    draw_artifacts,
    draw_confusion_matrix,
    draw_learning_rate,
    read_confusion_matrix,
    write_classification_report,
)


def colour_share(path, colour: tuple[int, int, int]) -> float:
    """Share of the pixels that are nearly of this colour."""
    pixels = matplotlib.image.imread(path)[:, :, :3] * 255
    return float((np.abs(pixels - np.array(colour)).max(axis=2) < 12).mean())


BLUE, ORANGE = (0x2B, 0x6C, 0xB0), (0xC0, 0x56, 0x21)


@pytest.mark.parametrize("with_curve", [True, False])
def test_the_learning_rate_is_drawn_with_and_without_a_schedule(tmp_path, with_curve):
    path = tmp_path / "folder" / "learning_rate.png"
    curve = [[step / 50, 0.001 * step / 100] for step in range(101)] if with_curve else []
    draw_learning_rate(path, curve, {1: 0.0005, 2: 0.001})
    assert matplotlib.image.imread(path).shape == (480, 840, 4)
    assert (colour_share(path, BLUE) > 0.001) == with_curve
    assert colour_share(path, ORANGE) > 0.0003


def test_a_confusion_matrix_is_dark_where_the_shares_are(tmp_path):
    right, wrong = tmp_path / "right.png", tmp_path / "wrong.png"
    draw_confusion_matrix(right, [[50, 0], [0, 10]], ["cat", "dog"])
    draw_confusion_matrix(wrong, [[25, 25], [5, 5]], ["cat", "dog"])
    dark = (8, 48, 107)  # the end of the colour map
    assert colour_share(right, dark) > 0.15  # two of four cells, each a whole true class
    assert colour_share(wrong, dark) < 0.05


@pytest.mark.parametrize("classes", [1, 21, 120])
def test_any_number_of_classes_with_any_names_is_drawn_without_a_warning(tmp_path, classes):
    names = [("$1", "猫", "a_b", "{x")[i % 4] + str(i) for i in range(classes)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_confusion_matrix(tmp_path / "matrix.png", np.eye(classes, dtype=int).tolist(), names)
    height, width, _ = matplotlib.image.imread(tmp_path / "matrix.png").shape
    assert height <= 16 * 120
    assert width <= 17 * 120


def test_the_classification_report_has_a_row_per_class_and_average(tmp_path):
    scores = {"precision": 0.9, "recall": 0.8, "f1-score": 0.85, "support": 10.0}
    report = {"=cat": scores, "dog, big": scores | {"recall": 0.7}, "accuracy": 0.75, "macro avg": scores}
    write_classification_report(tmp_path / "report.csv", report)
    with open(tmp_path / "report.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["class", "precision", "recall", "f1-score", "support"],
        ["'=cat", "0.9", "0.8", "0.85", "10.0"],
        ["dog, big", "0.9", "0.7", "0.85", "10.0"],
        ["accuracy", "", "", "0.75", ""],
        ["macro avg", "0.9", "0.8", "0.85", "10.0"],
    ]


@pytest.mark.parametrize("classes", [3, 5000])
def test_a_confusion_matrix_of_more_cells_than_pixels_is_not_drawn(tmp_path, classes):
    directory = RunDirectory(tmp_path)
    evaluation = {"class_names": list(map(str, range(classes))), "confusion_cells": [[0, 2, 7]]}
    write_json(directory.evaluation_file, evaluation | {"classification_report": {}})
    draw_artifacts(directory)
    assert (directory.artifacts / "confusion_matrix.png").is_file() == (classes == 3)
    assert (directory.artifacts / "classification_report.json").is_file()


def test_a_confusion_matrix_is_read_from_its_cells_and_as_earlier_versions_wrote_it():
    matrix = [[3, 1, 1], [0, 1, 0], [0, 0, 0]]
    cells = [[0, 0, 3], [0, 1, 1], [0, 2, 1], [1, 1, 1]]
    for written in ({"confusion_cells": cells}, {"confusion_matrix": matrix}):
        assert read_confusion_matrix({"class_names": ["a", "b", "c"], **written}).toarray().tolist() == matrix
