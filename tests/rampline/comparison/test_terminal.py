"""The table in terminals of any width."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from rampline.comparison.runs import read_comparison
from rampline.comparison.terminal import print_comparison

TIMES = "\N{MULTIPLICATION SIGN}"


def printed(comparison, width: int) -> list[str]:
    text = io.StringIO()
    print_comparison(comparison, Console(file=text, width=width))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_wide_terminal_has_every_column(client, log_study, four_runs):
    log_study("wide", four_runs, reference="baseline")
    lines = printed(read_comparison(client, "wide"), 300)
    head = next(line for line in lines if "strategy" in line)
    for title in ("replica batch", "test acc", "best val", "train s", "wall s", "cost", "published train seconds"):
        assert title in head
    mirrored = next(line for line in lines if line.strip().startswith("mirrored"))
    for figure in ("0.9520", "0.9600", "4.00", "10.0", "$0.0200", "1,500", f"1.50{TIMES}", "75 %", "finished"):
        assert figure in mirrored
    failed = next(line for line in lines if line.strip().startswith("multi-worker"))
    assert "\N{EN DASH}" in failed
    assert "failed" in failed


@pytest.mark.parametrize("width", [40, 60, 80, 99, 120])
def test_narrow_terminal_has_fewer_columns_on_whole_lines(client, log_study, four_runs, width):
    parent = log_study("narrow", four_runs, reference="baseline")
    lines = printed(read_comparison(client, "narrow", parent), width)
    assert max(len(line) for line in lines) <= width
    head = next(line for line in lines if line.strip().startswith("run"))
    rows = [line for line in lines if line.strip().split(" ")[0] in {"baseline", "short", "mirrored", "multi-worker"}]
    assert len([row for row in rows if "0." in row or "\N{EN DASH}" in row]) >= 4
    assert not any("…" in row for row in rows)
    assert "published" not in head
    assert ("train s" in head, "status" in head) == (width >= 80, width >= 60)


def test_what_draws_the_report_is_not_imported():
    # It takes as long to import as a comparison takes to be shown.
    code = "import sys, rampline.comparison.terminal; sys.exit('matplotlib' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_names_are_no_markup(client, log_study, four_runs):
    log_study("markup", [replace(four_runs[0], name="[red]odd[/]")])
    assert any("[red]odd[/]" in line for line in printed(read_comparison(client, "markup"), 120))


def test_recommendation_and_verdicts_follow_the_summary(client, log_study, four_runs):
    verdict = {"rampline.verdict": "input-bound: 61 % of each step waits."}
    parent = log_study("words", [four_runs[0], replace(four_runs[2], tags=verdict)], reference="baseline")
    lines = printed(read_comparison(client, "words", parent), 300)
    assert lines[-3].startswith(
        "No other run comes within 1 point of the best test accuracy (mirrored, 0.9520): mirrored"
    )
    assert lines[-2] == "mirrored: input-bound: 61 % of each step waits."
    assert not any(line.startswith("baseline:") for line in lines)
