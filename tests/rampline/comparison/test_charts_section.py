"""Which part of the curves of validation accuracy a chart shows."""

import pytest
from logged_runs import LoggedRun

from rampline.comparison.charts_section import accuracy_limits
from rampline.comparison.runs import read_comparison


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
def test_only_low_first_epochs_are_cut(client, log_study, curves, cut):
    runs = [LoggedRun(name=f"run-{i}", epochs=[(a, 9, 1e-3, 1) for a in curve]) for i, curve in enumerate(curves)]
    low, high = accuracy_limits(read_comparison(client, "lines", log_study("lines", runs, execution=str(curves))))
    accuracies = sorted(accuracy for curve in curves for accuracy in curve)
    assert [accuracy for accuracy in accuracies if not low < accuracy < high] == cut
