"""Which answers are wrong, and for which runs that is told."""

from __future__ import annotations

from logged_runs import there
from scipy.sparse import csr_array

from rampline.comparison.errors_section import Scores, make_errors_section, read_scores

NAMES = ("cat", "dog", "fox")
EVALUATION = {"class_names": NAMES, "confusion_cells": [[0, 0, 8], [0, 1, 2], [1, 1, 9], [1, 2, 1]]}
OF_AN_EARLIER_VERSION = {"class_names": NAMES, "confusion_matrix": [[8, 2, 0], [0, 9, 1], [0, 0, 0]]}
ERROR = {"path": "test/cat/1.png", "label": "cat", "prediction": "dog", "probability": 0.987, "png": "iVBORw0KGgo="}


def test_the_recommended_run_and_the_reference_are_told_of(client, compare, four_runs):
    comparison = compare("errors", four_runs, reference="baseline")
    assert read_scores(client, comparison) == []  # they were evaluated by an earlier version, or elsewhere
    runs = dict(zip(comparison.runs["run"], comparison.runs["run_id"], strict=True))
    for run, run_id in runs.items():
        client.log_dict(run_id, EVALUATION if run == "mirrored" else OF_AN_EARLIER_VERSION, "evaluation.json")
    client.log_dict(runs["mirrored"], [ERROR], "worst_errors.json")
    mirrored, baseline = read_scores(client, comparison)
    assert (mirrored.run, baseline.run, baseline.errors) == ("mirrored", "baseline", ())
    section = there(make_errors_section([mirrored, baseline]))
    told = "17 of 20 answers are right; most often it takes cat for dog (2 of 10), dog for fox (1 of 10)."
    assert section.sentences == (f"mirrored: {told}", f"baseline: {told}")
    assert section.tables[0].rows == (
        ("cat", "10", "0.8000", "0.8000"),
        ("dog", "10", "0.9000", "0.9000"),
        ("fox", "0", "\N{EN DASH}", "\N{EN DASH}"),
    )
    assert len(section.charts[0].spec["data"]["values"]) == 4
    assert section.pictures[0].lines == ("dog instead of cat", "98.7 % certain", "test/cat/1.png")


def test_the_balanced_accuracy_is_told_of_unbalanced_classes():
    scores = [
        Scores(run="a", class_names=NAMES, matrix=csr_array([[20, 1, 0], [5, 5, 0], [0, 0, 0]]), errors=()),
        Scores(run="b", class_names=NAMES, matrix=csr_array([[20, 0, 0], [5, 5, 0], [0, 0, 0]]), errors=()),
    ]
    section = there(make_errors_section(scores))
    balanced = f"{(20 / 21 + 5 / 10) / 2:.4f}"
    told = f"a: 25 of 31 answers are right (balanced accuracy {balanced}); most often it takes dog for cat (5 of 10), "
    assert section.sentences[0] == f"{told}cat for dog (1 of 21)."
    assert section.sentences[1].startswith("b: 25 of 30 answers are right; most")


def test_many_classes_have_no_matrix_and_few_rows(client, compare, four_runs):
    comparison = compare("many-classes", four_runs[:1])
    names = [f"n{number:08d}" for number in range(100)]
    evaluation = {"class_names": names, "confusion_cells": [[number, number, 1] for number in range(100)]}
    client.log_dict(comparison.rows[0]["run_id"], evaluation, "evaluation.json")
    section = there(make_errors_section(read_scores(client, comparison)))
    assert section.charts == ()
    assert section.sentences == ("baseline: 100 of 100 answers are right.",)
    assert len(section.tables[0].rows) == 40
