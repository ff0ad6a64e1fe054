"""Which part of the curves a chart shows."""

import json
from dataclasses import replace

import pandas as pd
import pytest
from logged_runs import LoggedRun

from rampline.comparison.charts_section import accuracy_scale, make_charts


@pytest.mark.parametrize(
    ("curves", "cut"),
    [
        ([[0.897, 0.814]], []),  # the first one is the best
        ([[0.10, 0.90, 0.91, 0.92]], [0.10]),
        ([[0.95, 0.94, 0.70, 0.72]], []),
        ([[0.30, 0.80, 0.93, 0.94], [0.20, 0.70, 0.95, 0.96]], [0.20, 0.30, 0.70, 0.80]),
        ([[0.5]], []),
    ],
)
def test_only_low_first_epochs_are_cut(compare, curves, cut):
    runs = [LoggedRun(name=f"run-{i}", epochs=[(a, 9, 1e-3, 1) for a in curve]) for i, curve in enumerate(curves)]
    low, high = accuracy_scale(compare("lines", runs, execution=str(curves)))["domain"]
    accuracies = sorted(accuracy for curve in curves for accuracy in curve)
    assert [accuracy for accuracy in accuracies if not low < accuracy < high] == cut


def test_long_runs_are_drawn_with_few_points_and_their_last_epoch(compare, four_runs):
    comparison = compare("long", four_runs[:2])
    curves = [
        {"run": run, "epoch": epoch, "val_loss": 1 / epoch, "elapsed_seconds": epoch}
        for run in ("baseline", "short")
        for epoch in range(1, 5001)
    ]
    long = replace(comparison, epochs=pd.DataFrame(curves, columns=comparison.epochs.columns))
    loss = make_charts(long)[0]
    rows = loss.spec["data"]["values"]
    assert 2000 < len(rows) <= 3000
    assert [row["epoch"] for row in rows if row["run"] == "short"][-2:] == [4996, 5000]
    assert loss.spec["encoding"]["y"]["scale"]["type"] == "log"
    assert loss.by_time["encoding"]["x"]["field"] == "elapsed_seconds"
    assert loss.caption.endswith("Of long runs not every epoch is drawn.")


def test_ticks_are_the_epochs_that_the_bar_is_of(compare, four_runs):
    machines = ([[1, "alpha"]], [[1, "beta"], [3, "alpha"]])
    runs = [
        replace(run, tags={**run.tags, "rampline.machines": json.dumps(machine)})
        for run, machine in zip((four_runs[0], four_runs[2]), machines, strict=True)
    ]
    comparison = compare("ticks", runs, reference="baseline")
    chart = next(chart for chart in make_charts(comparison) if chart.title == "Throughput")
    ticks = [row["images_per_second"] for row in chart.spec["layer"][1]["data"]["values"] if row["run"] == "mirrored"]
    assert ticks == [1700]  # the first one there traces
    assert comparison.rows[1]["images_per_second"] == 1700
