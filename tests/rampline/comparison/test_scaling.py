"""The formulas of speed-up and efficiency, on tables."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import pytest

from rampline.comparison.scaling import choose_reference, steady_throughput, with_scaling
from rampline.comparison.tracked import SAME_DATA


def table(**changes: Any) -> pd.DataFrame:
    columns = {
        "run": ["one", "two", "eight"],
        "status": ["FINISHED"] * 3,
        "images_per_second": [100.0, 160.0, 300.0],
        "replicas": pd.array([1, 2, 8], dtype="Int64"),
        "epochs_in_all": pd.array([5, 5, 5], dtype="Int64"),
        "fingerprint": ["a"] * 3,
        **{key: ["None"] * 3 for key in SAME_DATA},
        "machine": ["here"] * 3,
        "machines": [((1, "here"),)] * 3,
        "train_seconds": [50.0, 30.0, 20.0],
        "train_seconds_in_all": [math.nan] * 3,
    }
    return pd.DataFrame(columns | changes)


def test_speedup_is_throughput_and_efficiency_is_per_replica():
    scaled = with_scaling(table(), "one")
    assert scaled["speedup"].tolist() == [1.0, 1.6, 3.0]
    assert scaled["scaling_efficiency"].tolist() == [1.0, 0.8, 0.375]
    assert scaled["train_seconds_vs_reference"].tolist() == [1.0, 0.6, 0.4]


def test_efficiency_is_relative_to_the_replicas_of_the_reference():
    scaled = with_scaling(table(), "two")
    assert scaled["speedup"].tolist() == pytest.approx([0.625, 1.0, 1.875])
    assert scaled["scaling_efficiency"].tolist() == pytest.approx([1.25, 1.0, 0.46875])


def test_times_are_compared_for_equal_epochs_on_equal_data_only():
    epochs = with_scaling(table(epochs_in_all=pd.array([5, 4, 5], dtype="Int64")), "one")["train_seconds_vs_reference"]
    assert epochs.isna().tolist() == [False, True, False]
    for key in ("fingerprint", "data.limit", "data.split_seed", "data.validation_fraction"):
        data = with_scaling(table(**{key: ["a", "a", "b"]}), "one")["train_seconds_vs_reference"]
        assert data.isna().tolist() == [False, False, True]


def test_the_time_of_a_run_is_that_with_the_run_that_it_starts_from():
    scaled = with_scaling(table(train_seconds_in_all=[math.nan, 80.0, math.nan]), "one")
    assert scaled["train_seconds_vs_reference"].tolist() == [1.0, 1.6, 0.4]


def test_without_reference_nothing_is_derived():
    assert with_scaling(table(), "")["speedup"].isna().tolist() == [True] * 3


def test_choose_reference():
    assert choose_reference(table(), "two") == "two"
    assert choose_reference(table(), "unknown") == "one"
    assert choose_reference(table(status=["KILLED", "RUNNING", "FINISHED"]), "one") == "eight"
    assert choose_reference(table(images_per_second=[math.nan] * 3), "one") == ""


def test_steady_throughput_leaves_out_the_epoch_that_traces():
    assert steady_throughput(pd.DataFrame({"images_per_second": [5.0, 90.0, math.nan, 110.0]})) == [90.0, 110.0]
    assert steady_throughput(pd.DataFrame({"images_per_second": [5.0]})) == [5.0]
