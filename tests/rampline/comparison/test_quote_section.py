"""What was expected of runs, beside what came out."""

from __future__ import annotations

import io
from typing import Any

from logged_runs import LoggedRun, there
from rich.console import Console

from rampline.comparison.quote_section import make_quote_section
from rampline.comparison.report import render_report
from rampline.comparison.runs import NOT_MEASURED_TAG, read_comparison
from rampline.comparison.terminal import print_comparison

ARROW = "\N{RIGHTWARDS ARROW}"


def run(name: str, quoted: float | None, wall: float, tags: Any = None, **metrics: float) -> LoggedRun:
    quote = {} if quoted is None else {"quoted_wall_seconds": quoted, "quoted_within": 0.2}
    return LoggedRun(
        name=name,
        epochs=[(0.9, 100, 1e-3, 1)],
        metrics={"test_accuracy": 0.9, "wall_seconds": wall, **quote, **metrics},
        tags=tags or {},
    )


def test_each_quote_stands_beside_what_came_out(compare):
    runs = [
        run("near", 100.0, 110.0, quoted_startup_seconds=2.0, startup_seconds=1.0, quoted_cost_usd=0.5, cost_usd=0.55),
        run("far", 100.0, 150.0),
        run("never-quoted", None, 40.0),
        run("stopped", 100.0, 20.0, {"rampline.stopped": "after epoch 1 of 5: limit of 1 minute reached"}),
        run("killed", 100.0, 300.0, {"rampline.attempts": "2"}),
        run("rested", 100.0, 300.0, {"rampline.first_epochs": "[1, 2]"}),
        run("elastic", 100.0, 300.0, {"rampline.workers": "2, 1"}),
        run("moved", 100.0, 300.0, {"rampline.machines": '[[1, "here"], [2, "there"]]'}),
    ]
    section = there(make_quote_section(compare("quoted", runs)))
    assert section.sentences == (
        "200 s were quoted for 2 runs, 260 s came out (+30 %); 1 of 2 lie in the interval of their quote.",
    )
    figures, stages = section.tables
    assert figures.head == ("run", "wall s", "cost")
    near, far, *others = figures.rows
    assert [row[0] for row in others] == ["stopped", "killed", "rested", "elastic", "moved"]
    assert near == ("near", f"100 {ARROW} 110 (+10 %)", f"$0.5000 {ARROW} $0.5500 (+10 %)")
    assert far == ("far", f"100 {ARROW} 150 (+50 %)", "\N{EN DASH}")
    assert stages.rows[0] == ("near", f"2.00 {ARROW} 1.00 (-50 %)")


def test_without_quotes_there_is_no_section(compare):
    comparison = compare("unquoted", [run("a", None, 40.0)])
    assert make_quote_section(comparison) is None


def test_what_was_not_measured_is_said_in_terminal_and_report(client, log_study):
    parent = log_study("more", [run("a", None, 40.0), run("b", None, 50.0)])
    client.set_tag(parent, NOT_MEASURED_TAG, "Not measured: b with 4 workers would reach 2.0.\nNot measured: c.")
    comparison = read_comparison(client, "more", parent)
    assert comparison.not_measured == ("Not measured: b with 4 workers would reach 2.0.", "Not measured: c.")
    console = Console(file=io.StringIO(), width=120)
    print_comparison(comparison, console)
    for text in (console.file.getvalue(), render_report(comparison)):  # type: ignore[attr-defined]
        assert all(sentence in text for sentence in comparison.not_measured)
