"""The written files: `comparison.csv` and the self-contained `report.html`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pandas as pd
import pytest
from golden import visible_text

from rampline.comparison.report import render_report, write_comparison
from rampline.comparison.run_table import make_columns
from rampline.comparison.runs import read_comparison
from rampline.comparison.summary import summarise
from rampline.data.quality import DataReport, ReportRow, make_report

VOID = {"meta", "img", "input", "link", "br", "line", "path", "use", "rect"}


class Page(HTMLParser):
    """Cells of the comparison table by run, ids, headings, and every address that a browser would fetch."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.cells: dict[str, dict[str, str]] = {}
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self._row: dict[str, str] = {}
        self._cell = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.ids += [value for key, value in attrs if key == "id" and value]
        self.addresses += [value or "" for key, value in attrs if key in ("src", "href", "xlink:href")]
        if tag == "td":
            self._cell = values.get("data-label") or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag
        if tag == "tr" and "run" in self._row:
            self.cells[self._row["run"]] = self._row
        if tag == "tr":
            self._row = {}
        if tag == "td":
            self._cell = ""

    def handle_data(self, data: str) -> None:
        if self._cell and data.strip():
            self._row.setdefault(self._cell, data.strip())


@pytest.fixture(scope="module")
def comparison(compare, four_runs):
    return compare("report", four_runs, reference="baseline", command="rampline run report --set seed=7")


def test_csv_table_and_summary_hold_the_same_figures(comparison, tmp_path):
    report = write_comparison(comparison, tmp_path / "reports")
    csv = pd.read_csv(report.with_name("comparison.csv")).set_index("run")
    page = Page(report.read_text())
    summary = summarise(comparison, (), 0.0).moments[0].figures
    assert csv.index.tolist() == list(page.cells) == ["baseline", "short", "mirrored", "multi-worker"]
    for column in make_columns(comparison):
        for run, cells in page.cells.items():
            if column.key not in csv.columns or column.title not in cells:
                continue
            assert cells[column.title] == column.text(csv.loc[run].to_dict())
    for key, value in summary.items():
        metric, run = key.split("/")
        assert csv.at[run, metric] == value
    assert csv.at["mirrored", "speedup"] == 1.5
    assert csv.at["baseline", "published_test_accuracy"] == 0.98
    assert page.cells["mirrored"]["images/s"] == "1,500"


def test_report_is_one_whole_page_without_network(comparison):
    html = render_report(comparison)
    page = Page(html)
    assert page.open == []
    assert page.tags.isdisjoint({"img", "iframe"})
    assert all(address.startswith(("#", "data:")) for address in page.addresses)
    scripts = html.split("<script>")
    ours = scripts[0] + scripts[2]
    assert len(scripts) == 3  # Vega's, and what draws the charts with it
    assert not re.search(r"https?://|@import|url\((?!#)|<script src", ours)
    assert len(page.ids) == len(set(page.ids))
    assert {"runs", "charts", "environment", "command", "method"} <= set(page.ids)
    charts = html.partition('<section id="charts">')[2].partition("</section>")[0]
    assert charts.count("<figure>") == 4
    assert "prefers-color-scheme: dark" in html


def test_names_are_escaped(client, log_study, four_runs):
    odd = "<script>alert('$x$')</script>"
    log_study("escape", [replace(four_runs[0], name=odd), four_runs[1]], command="echo <b>")
    rows = [ReportRow("train", "<u>", 0, "<s>", "aa", 8, 9, ""), ReportRow("test", "<u>", 0, "<s>", "aa", 8, 9, "")]
    report = make_report(rows, source="<i>", fingerprint="f" * 64)
    html = render_report(read_comparison(client, "escape"), data={"all": report})
    page = Page(html)
    assert page.tags.isdisjoint({"b", "u", "s", "i"})
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert" in html


@pytest.mark.parametrize("kept", [[0], [3], []], ids=["one run", "failed only", "no epochs"])
def test_little_to_show(compare, four_runs, kept):
    runs = [four_runs[index] for index in kept] or [replace(four_runs[3], epochs=())]
    html = render_report(compare("little", runs))
    assert len(Page(html).cells) == 1
    assert ("nothing to draw" in html) == (not kept)


def test_attempts_are_told_of_where_a_run_had_several(compare, four_runs, comparison):
    rows = [["1", "a, b", "0 → 20", "worker 1 on b was lost"], ["2", "a, c", "20 → 30", "complete"]]
    moved = replace(four_runs[2], tags={"rampline.attempt_table": json.dumps(rows)})
    html = render_report(compare("moved", [four_runs[0], moved]))
    text = visible_text(html.partition('<section id="attempts">')[2].partition("</section>")[0])
    assert [line.split(" | ") for line in text.splitlines() if line.count("|") == 4][1:] == [
        ["mirrored", *r] for r in rows
    ]
    assert "attempts" not in Page(render_report(comparison)).ids


def test_datasets_of_one_source_are_told_by_their_runs(comparison):
    def report(count: int, source: str = "folder:pets") -> DataReport:
        rows = [ReportRow("train", "cat", 0, f"train/cat/{number}.png", "", 8, 9, "") for number in range(count)]
        return make_report(rows, source=source, fingerprint=source[-1] * 64)

    html = render_report(comparison, data={"a and b": report(41), "c": report(7), "d": report(5, "folder:car")})
    for title in ("folder:pets (ssssssss) of a and b", "folder:pets (ssssssss) of c", "folder:car (rrrrrrrr)<"):
        assert f"Images by split and class, {title}" in html
    assert all(f">{count}</td>" in html for count in (41, 7, 5))


def test_data_report(comparison):
    rows = [
        ReportRow("train", "cat", 0, "train/cat/1.png", "aa", 8, 9, ""),
        ReportRow("test", "cat", 0, "test/cat/2.png", "aa", 8, 9, ""),
        ReportRow("train", "dog", 1, "train/dog/3.png", "bb", 0, 0, "not an image"),
    ]
    html = render_report(comparison, data={"all": make_report(rows, source="folder:pets", fingerprint="f" * 64)})
    for text in ("Images by split and class", "not an image", "test/cat/2.png"):
        assert text in html
    many = [ReportRow("train", "cat", 0, f"{number}.png", "", 0, 0, "not an image") for number in range(100)]
    long = make_report([*rows, *many], source="folder:pets", fingerprint="f" * 64)
    assert "and 61 more rows" in render_report(comparison, data={"all": long})
