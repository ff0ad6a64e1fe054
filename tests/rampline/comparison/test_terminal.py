"""The table in terminals of any width."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from rampline.comparison.runs import read_comparison
from rampline.comparison.terminal import print_comparison


def printed(comparison, width: int) -> list[str]:
    text = io.StringIO()
    print_comparison(comparison, Console(file=text, width=width))
    return [line.rstrip() for line in text.getvalue().splitlines()]


@pytest.mark.parametrize("width", [40, 60, 120])
def test_narrow_terminal_has_fewer_columns_on_whole_lines(compare, four_runs, width):
    lines = printed(compare("narrow", four_runs, reference="baseline"), width)
    assert max(len(line) for line in lines) <= width
    head = next(line for line in lines if line.strip().startswith("run"))
    rows = [line for line in lines if line.strip().split(" ")[0] in {"baseline", "short", "mirrored", "multi-worker"}]
    assert len([row for row in rows if "0." in row or "\N{EN DASH}" in row]) >= 4
    assert not any("…" in row for row in rows)
    assert "published" not in head
    assert ("train s" in head, "status" in head) == (width >= 80, width >= 60)


def test_names_are_no_markup(client, log_study, four_runs):
    log_study("markup", [replace(four_runs[0], name="[red]odd[/]")])
    assert any("[red]odd[/]" in line for line in printed(read_comparison(client, "markup"), 120))
