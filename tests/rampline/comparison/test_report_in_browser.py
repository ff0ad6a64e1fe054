"""The report as people see it: in Chromium, on a screen, on a phone, in the dark and on paper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import PHONE, open_page
from logged_runs import there
from mlflow import MlflowClient
from mlflow.entities import RunInfo
from playwright.sync_api import Browser, Page
from scipy.sparse import csr_array

from rampline.comparison.errors_section import Scores
from rampline.comparison.mlflow_reader import read_children
from rampline.comparison.report import write_comparison
from rampline.comparison.runs import read_comparison
from rampline.data.quality import ReportRow, make_report
from rampline.tracking.description import SampleReader
from rampline.tracking.reconciliation import Known, reconcile

# What is wider than its box: an element beyond the page, a cell beyond its card, a text beyond its chart.
FIND_OVERFLOW = """() => {
  const outside = (inner, outer) => inner.width && (inner.right > outer.right + 1 || inner.left < outer.left - 1);
  const name = element => `${element.tagName} ${element.textContent.trim().slice(0, 40)}`;
  const page = {left: 0, right: document.documentElement.clientWidth};
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const box = element.closest(".chart svg") ?? element.closest(".scroll");
    const outer = box && box !== element && !box.matches(".scroll") ? box.getBoundingClientRect() : page;
    const scrolls = box && box !== element && box.matches(".scroll");
    const moves = element.matches(".chart svg g, .chart path, clipPath *");
    if (!scrolls && !moves && outside(element.getBoundingClientRect(), outer))
      found.push(name(element));
  }
  for (const cell of document.querySelectorAll(".comparison td, .cards td"))
    if (cell.scrollWidth > cell.clientWidth + 1) found.push(name(cell));
  return found;
}"""
# Texts of one chart that lie on each other.
FIND_OVERLAP = """() => {
  const found = [];
  for (const svg of document.querySelectorAll(".chart svg")) {
    const texts = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
    texts.forEach(([first, one], index) => texts.slice(index + 1).forEach(([second, other]) => {
      const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
      const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
      if (across > 1 && down > 4) found.push(`${svg.closest("figure").innerText}: ${first}, ${second}`);
    }));
  }
  return found;
}"""
SECTIONS = [
    *("recommendation", "runs", "charts", "errors", "ways", "explanation", "scaling", "system"),
    *("data", "environment", "command", "method"),
]
STEP_MS = {"input": 1.5, "compute": 40.25, "contention": 11.0, "sync": 6.0, "other": 3.25}
SECONDS = {
    **{"startup": 3.0, "tracing": 1.5, "steps": 4.0, "evaluation": 0.5},
    **{"checkpoint": 0.2, "logging": 0.1, "unexplained": 0.1},
}
# 1 pixel of grey.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
NAMES = tuple(f"a class with a long name {letter}" for letter in "abcdefghij")
ERROR = {
    "path": f"test/{'cat' * 30}/1.png",
    "label": NAMES[0],
    "prediction": NAMES[1],
    "probability": 0.987,
    "png": PNG,
}
SCORES = [
    Scores(
        run=run,
        class_names=NAMES,
        matrix=csr_array(9 * np.eye(10, dtype=np.int64) + np.eye(10, k=1, dtype=np.int64)),
        errors=(ERROR,) * 12,
    )
    for run in ("mirrored", "baseline")
]
GPU = {
    **{"name": "Tesla T4", "utilization_percent": 80.0, "memory_access_percent": 40.0, "power_watts": 65.0},
    **{"memory_mebibytes": 900.0, "memory_total_mebibytes": 15_000.0},
}


@contextmanager
def open_report(browser: Browser, file: Path, **options: Any) -> Iterator[Page]:
    """The page with its charts drawn."""
    with open_page(browser, file, **options) as page:
        page.wait_for_function("document.querySelectorAll('.chart:not([data-drawn])').length === 0")
        yield page


@pytest.fixture(scope="module")
def report(client, log_study, four_runs, tmp_path_factory) -> Path:
    """A written report of four runs with all that a report may show: prices, published figures, probes, GPUs, data."""
    source = "Somebody's article, https://example.org/an/article/with/a/long/address/that/must/break/somewhere"
    tags = {"reference": "baseline", "command": "rampline run pets --set seed=7", "published_source": source}
    folder = tmp_path_factory.mktemp("report")
    parent = log_study("browser", [_explain(run) for run in four_runs], **tags)
    for child in read_children(client, client.get_run(parent)):
        _log_system(client, child.info, folder / child.info.run_id)
    rows = [ReportRow("train", "cat", 0, f"train/{'cat' * 30}/{n}.png", "aa", 8, 9, "") for n in range(2)]
    rows += [ReportRow("test", "dog", 1, "test/dog/3.png", "bb", 0, 0, "not an image")]
    data = {"mirrored": make_report(rows, source="folder:pets", fingerprint="f" * 64)}
    return write_comparison(read_comparison(client, "browser", parent), folder, data=data, scores=SCORES)


def _explain(run):
    """The run with its losses, and with what the probes have measured; the one that failed has none of these."""
    curves = {
        "train_accuracy": (0.6, 0.9, 0.97, 0.99),
        "train_loss": (2.0, 0.4, 0.1, 0.05),
        "val_loss": (2.1, 0.6, 0.3, 0.2),
    }
    run = replace(run, curves={name: curve[: len(run.epochs)] for name, curve in curves.items()})
    if run.status != "FINISHED":
        return run
    measured = {f"step_ms_{part}": value for part, value in STEP_MS.items()}
    measured |= {f"{part}_seconds": value for part, value in SECONDS.items()}
    measured |= {"ceiling_images_per_second": 1600.0, "test_examples": 2000.0}
    verdict = {"rampline.bound": "compute", "rampline.verdict": "compute-bound: 65 % of each step is computation"}
    return replace(run, metrics={**run.metrics, **measured}, tags={**run.tags, **verdict})


def _log_system(client: MlflowClient, run: RunInfo, folder: Path) -> None:
    folder.mkdir()
    sample = {"cpu_percent": 150.0, "memory_mebibytes": 900.0, "machine_cpu_percent": 80.0, "gpus": [GPU, GPU]}
    lines = [json.dumps({"time": run.start_time / 1000 + seconds, **sample}) for seconds in (0, 5, 10)]
    file = folder / "chief-0.jsonl"
    file.write_text("\n".join(lines) + "\n")
    reconcile(client, SampleReader(file).read(), Known.ask(client, run.run_id))


def _background(page: Page) -> tuple[int, ...]:
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(part) for part in re.findall(r"\d+", color))


@pytest.mark.long
def test_every_section_is_there_and_shown(browser, report):
    with open_report(browser, report) as page:
        shown = page.eval_on_selector_all("main > section", "all => all.map(one => one.id)")
        assert shown == SECTIONS
        links = page.eval_on_selector_all("nav a", "all => all.map(one => one.getAttribute('href'))")
        assert links == [f"#{section}" for section in shown]
        assert page.locator("#runs tbody tr").count() == 4
        assert page.locator("#charts .chart svg").count() == 7
        assert page.locator("#errors .chart svg").count() == 2
        assert page.locator("#errors img").count() == 12
        assert page.locator("#explanation .chart svg").count() == 2
        assert "62.0" in page.locator("#explanation .chart svg text").all_text_contents()  # the whole step
        for chart in page.locator(".chart svg").all():
            box = there(chart.bounding_box())
            assert box["width"] > 300
            assert box["height"] > 80
        for table in page.locator("table").all():
            assert table.is_visible()
        assert page.locator("#runs thead").is_visible()
        assert page.locator("#runs .published").first.inner_text() == "0.9800 test acc\n2,090 train s"
        assert (page.locator("#runs a").get_attribute("href") or "").startswith("https://example.org/an/")


@pytest.mark.parametrize(
    "width", [PHONE, *(pytest.param(width, marks=pytest.mark.long) for width in (768, 1121, 1280))]
)
def test_nothing_overflows_and_the_first_screen_has_the_four_answers(browser, report, width):
    with open_report(browser, report, width=width) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(FIND_OVERFLOW) == []
        assert page.evaluate(FIND_OVERLAP) == []
        questions = page.locator("header .question")
        assert questions.all_text_contents() == [
            *("Is it faster?", "Which run to take?", "What does it cost?", "Is it the same model?"),
            "Before you trust this",
        ]
        for question in questions.all()[:4]:
            box = there(question.bounding_box())
            assert box["y"] + box["height"] < 844


@pytest.mark.long
def test_rows_are_cards_on_a_phone(browser, report):
    with open_report(browser, report, width=PHONE) as page:
        assert not page.locator("#runs thead").is_visible()
        cell = page.locator("#runs tbody tr").first.locator("td.test_accuracy")
        assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == '"test acc"'
        overhang = "all => all.map(one => one.scrollWidth - one.clientWidth)"
        assert (
            page.eval_on_selector_all("#runs .scroll, #scaling .scroll, #recommendation .scroll", overhang) == [0] * 3
        )


@pytest.mark.long
def test_light_and_dark(browser, report):
    with open_report(browser, report, scheme="light") as page:
        assert min(_background(page)) > 240
        light = page.locator("#charts .chart svg text").first.evaluate("text => getComputedStyle(text).fill")
    with open_report(browser, report, scheme="dark") as page:
        assert max(_background(page)) < 60
        assert page.locator("#charts .chart svg text").first.evaluate("text => getComputedStyle(text).fill") != light


@pytest.mark.long
def test_print_is_on_white_paper_and_whole(browser, report, tmp_path):
    with open_report(browser, report, scheme="dark") as page:
        page.emulate_media(media="print")
        assert _background(page) == (255, 255, 255)
        assert not page.locator("nav").is_visible()
        assert page.locator("#runs thead").is_visible()
        page.set_viewport_size({"width": 695, "height": 980})  # A4 without its margins
        assert page.evaluate("document.documentElement.scrollWidth") <= 695
        assert page.evaluate(FIND_OVERFLOW) == []
        printed = page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def test_the_pointer_shows_figures_and_the_wheel_zooms(browser, report):
    with open_report(browser, report) as page:
        chart = page.locator("#charts .chart").first
        chart.scroll_into_view_if_needed()
        chart.locator("path[aria-roledescription=point]").nth(1).hover()
        shown = page.locator("#vg-tooltip-element.visible")
        shown.wait_for()
        assert shown.inner_text().split() == [
            *("run", "baseline", "epoch", "2"),
            *("seconds", "since", "training", "began", "3", "validation", "accuracy", "0.95"),
        ]
        before = chart.locator("svg text").all_text_contents()
        page.keyboard.down("Shift")
        page.mouse.wheel(0, -300)
        page.keyboard.up("Shift")
        page.wait_for_timeout(200)
        assert chart.locator("svg text").all_text_contents() != before
        page.get_by_label("by time").check()
        page.locator("#charts svg text", has_text="seconds since training began").nth(4).wait_for()


def test_the_file_is_small_enough_to_send(report):
    assert report.stat().st_size < 5e6
