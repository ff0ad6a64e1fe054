"""The columns of the table of runs."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd

from rampline.comparison.run_table import make_columns, make_run_rows
from rampline.comparison.runs import read_comparison


def test_missing_figures_are_dashes(compare, four_runs):
    columns = make_columns(compare("dashes", four_runs))
    for value in (None, math.nan, pd.NA, ""):
        assert {column.text({column.key: value}) for column in columns} == {"\N{EN DASH}"}


def test_cost_and_published_figures_only_where_there_are_any(compare, four_runs):
    plain = {column.key for column in make_columns(compare("plain", [four_runs[1]]))}
    assert not plain & {"cost_usd", "published_train_seconds"}
    priced = {column.key for column in make_columns(compare("priced", four_runs))}
    assert priced - plain == {"cost_usd", "published_train_seconds", "published_test_accuracy"}


def test_published_figures_stand_beside_ours(compare, four_runs):
    published = ("train_accuracy", "epoch_seconds", "val_accuracy", "speedup", "carbon_kilograms")
    tags = {f"rampline.published.{metric}": "0.9" for metric in published}
    curves = {"train_accuracy": [0.5, 0.8], "epoch_seconds": [9, 2]}
    comparison = compare("beside", [replace(four_runs[1], tags=tags, curves=curves)])
    columns = {column.key: column for column in make_columns(comparison)}
    row = comparison.rows[0]
    assert (columns["train_accuracy"].text(row), columns["epoch_seconds"].text(row)) == ("0.8000", "2.00")
    assert columns["published_train_accuracy"].under == "train_accuracy"
    assert columns["published_epoch_seconds"].text(row) == "0.90"
    assert columns["published_val_accuracy"].under == "last_val_accuracy"
    assert columns["published_speedup"].text(row) == "0.90\N{MULTIPLICATION SIGN}"
    assert columns["published_carbon_kilograms"].text(row) == "0.90"  # we have no such figure
    assert "carbon_kilograms" not in columns
    assert list(columns)[-1] == "status"


def test_score_on_the_validation_split_is_called_so(client, log_study, four_runs):
    parent = log_study("split", [four_runs[0]])
    run_id = read_comparison(client, "split", parent).rows[0]["run_id"]
    client.set_tag(run_id, "rampline.test_split", "validation")
    titles = {column.key: column.title for column in make_columns(read_comparison(client, "split", parent))}
    assert titles["test_accuracy"] == "val acc"


def test_the_best_accuracy_is_that_on_the_references_images(compare, four_runs):
    other = replace(four_runs[2], tags={"rampline.data_fingerprint": "e" * 64})
    for study, run, best in (("alike", four_runs[2], "mirrored"), ("other-images", other, "baseline")):
        comparison = compare(study, [*four_runs[:2], run], reference="baseline")
        rows = make_run_rows(comparison, make_columns(comparison))
        bold = [row.run for row in rows for cell in row.cells if cell.is_best and cell.column.key == "test_accuracy"]
        assert bold == [best]


def test_a_best_accuracy_needs_no_evaluation_of_the_reference(compare, four_runs):
    unscored = replace(four_runs[0], metrics={}, tags={"rampline.test_split": ""})
    comparison = compare("unscored", [unscored, *four_runs[1:3]], reference="baseline")
    rows = make_run_rows(comparison, make_columns(comparison))
    bold = [row.run for row in rows for cell in row.cells if cell.is_best and cell.column.key == "test_accuracy"]
    assert len(bold) == 1
    assert bold != ["baseline"]
