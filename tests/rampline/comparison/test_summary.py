"""The comparison as params, metrics, tags and note of MLflow runs."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from rampline.comparison.runs import read_comparison
from rampline.comparison.summary import derived_metrics, summarise, write_markdown
from rampline.tracking.reconciliation import Known, reconcile


def test_mlflow_takes_and_keeps_the_summary(client, log_study, four_runs):
    parent = log_study("summary", four_runs, reference="baseline")
    for now in (1.0, 2.0):  # an execution may be compared again
        reconcile(client, summarise(read_comparison(client, "summary"), (), now), Known.ask(client, parent))
    data = client.get_run(parent).data
    assert data.metrics["speedup/mirrored"] == 1.5
    assert data.metrics["scaling_efficiency/mirrored"] == 0.75
    assert data.metrics["test_accuracy/baseline"] == 0.94
    assert data.metrics["images_per_second/multi-worker"] == 400
    assert "speedup/multi-worker" not in data.metrics
    assert data.params["strategy/mirrored"] == "mirrored"
    assert data.params["replicas/mirrored"] == "2"
    assert data.tags["rampline.fastest_run"] == "mirrored"
    assert data.tags["rampline.compared_with"] == "baseline"
    note = data.tags["mlflow.note.content"]
    assert note.startswith("mirrored is the fastest")
    assert "No other run comes within 1 point of the best test accuracy (mirrored, 0.9520): mirrored takes" in note
    assert "| 0.9520 |" in note
    run = client.get_run(parent).info
    row = next(line for line in note.splitlines() if "| [mirrored](#/experiments/" in line)
    assert row.startswith(f"| [mirrored](#/experiments/{run.experiment_id}/runs/")
    assert "[side by side](#/compare-runs?runs=" in note
    assert f"[report.html](#/experiments/{run.experiment_id}/runs/{parent}/artifacts/report.html" in note
    assert "best val" not in note  # as many columns as fit on the page


def test_derived_metrics_by_run_id(compare, four_runs):
    comparison = compare("derived", four_runs, reference="baseline")
    ids = dict(zip(comparison.runs["run"], comparison.runs["run_id"], strict=True))
    derived = derived_metrics(comparison)
    assert derived[ids["mirrored"]] == pytest.approx({"speedup": 1.5, "scaling_efficiency": 0.75})
    assert ids["multi-worker"] not in derived
    assert len(derived) == 3


def test_long_note_is_cut_at_a_row(compare, four_runs):
    comparison = compare("long", four_runs)
    long = replace(comparison, runs=pd.concat([comparison.runs] * 30, ignore_index=True))
    note = write_markdown(long)
    assert len(note) <= 7900
    assert note.endswith("|")
    assert "| mirrored |" in note  # without links there is room for more rows
