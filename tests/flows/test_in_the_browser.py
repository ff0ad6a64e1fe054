"""The two UIs in a real browser, on a real `rampline up`: train from the form, compare in MLflow, cancel, schedule.

With RAMPLINE_SCREENSHOTS set, the pictures of docs/operations.md are written into that folder.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import mlflow_tags, wait_until
from flow_runs import ENDED, FOR_EVER, QUICK, Flows
from mlflow.tracking import MlflowClient
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Page, ViewportSize
from prefect_ui import (
    cancel,
    choose,
    field,
    fill_json,
    fill_number,
    open_flow_run,
    open_form,
    open_tab,
    submit,
    switch_on_schedule,
)

from rampline.servers.secret import sign_in_lines
from rampline.study import load_study
from rampline.tracking.experiment import begin_run, open_experiment
from rampline.tracking.pages import LATEST, compare_page, experiment_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("mlflow_login")]

MINUTE = 60_000  # ms
COLOURS = 64
USUAL: ViewportSize = {"width": 1280, "height": 900}
LARGE: ViewportSize = {"width": 1600, "height": 1400}
QUIET_MLFLOW = """localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true")"""


@pytest.fixture(scope="module")
def context(stack: Flows, browser: Browser) -> Iterator[BrowserContext]:
    """With the links opened that sign in."""
    with browser.new_context(viewport=USUAL, color_scheme="light", reduced_motion="reduce") as context:
        context.add_init_script(QUIET_MLFLOW)
        for line in sign_in_lines(stack.home, with_secret=True):
            page = context.new_page()
            page.goto(line.split()[-1])
            assert "@" not in page.url
            page.close()
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    page = context.new_page()
    yield page
    page.close()


def picture(page: Page, name: str) -> None:
    folder = os.environ.get("RAMPLINE_SCREENSHOTS")
    if folder:
        time.sleep(3)  # charts draw themselves
        shot = Image.open(io.BytesIO(page.screenshot()))
        shot.quantize(COLOURS).save(Path(folder) / f"{name}.png", optimize=True)


def flow_runs_of_study(stack: Flows) -> list[dict[str, Any]]:
    """Of the deployment, the newest first."""
    found = stack.api.request("GET", "/deployments/name/study/study")["id"]
    body = {"flow_runs": {"deployment_id": {"any_": [found]}}, "sort": "EXPECTED_START_TIME_DESC"}
    return stack.api.post("/flow_runs/filter", body)


@pytest.mark.long
def test_a_study_from_the_form_to_the_comparison_in_mlflow(stack: Flows, page: Page):
    log_earlier_run(stack)
    server, before = stack.state.prefect_url, flow_runs_of_study(stack)
    open_form(page, server, "study")
    choose(page, "strategy", "single")
    fill_number(page, "epochs", 0)
    fill_json(page, "overrides", json.dumps(QUICK))
    submit(page)
    field(page, "epochs").get_by_text("0 is not valid").wait_for()
    assert flow_runs_of_study(stack) == before
    fill_number(page, "epochs", 3)
    picture(page, "prefect-form")
    submit(page)
    wait_until(lambda: len(flow_runs_of_study(stack)) > len(before), 30)
    flow_run = flow_runs_of_study(stack)[0]
    assert flow_run["parameters"]["strategy"] == "single"
    page.goto("about:blank")  # drawing the page all the while takes as much as the training
    assert stack.until(flow_run["id"], *ENDED)["state_type"] == "COMPLETED", stack.log(flow_run["id"])
    open_flow_run(page, server, flow_run["id"])
    page.get_by_text("Completed", exact=True).first.wait_for(timeout=MINUTE)
    picture(page, "prefect-flow-run")
    open_tab(page, "Artifacts")
    for key in ("comparison-digits", "mlflow-charts-digits", "mlflow-report-digits"):
        page.get_by_text(key).first.wait_for(timeout=MINUTE)
    look_at_mlflow(stack, page, execution=flow_run["id"].replace("-", "")[-6:])


def log_earlier_run(stack: Flows) -> None:
    """A run of an execution that is not the latest."""
    client = MlflowClient(stack.state.mlflow_url)
    experiment = open_experiment(client, load_study("digits"), stack.home, execution="earlier")
    parent = begin_run(client, experiment, study="digits", execution="earlier")
    tags = {"rampline.kind": "run", "rampline.execution": "earlier", "mlflow.parentRunId": parent}
    run = client.create_run(experiment, run_name="earlier baseline", tags=tags)
    for run_id in (run.info.run_id, parent):
        client.set_terminated(run_id)


def look_at_mlflow(stack: Flows, page: Page, execution: str) -> None:
    mlflow = stack.state.mlflow_url
    client = MlflowClient(mlflow)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    page.goto(f"{mlflow}/{experiment_page(experiment.experiment_id, LATEST)}")
    page.get_by_text("2 matching runs").first.wait_for(timeout=MINUTE)
    for name in ("baseline", "baseline-fit"):
        page.get_by_text(name, exact=True).first.wait_for(timeout=MINUTE)
    picture(page, "mlflow-runs")
    page.set_viewport_size(LARGE)  # charts below it are not drawn
    page.goto(f"{mlflow}/{experiment_page(experiment.experiment_id, LATEST, charts=True)}")
    for text in ("Rampline: latest execution", "2 matching runs", "In the end", "By wall clock", "elapsed_seconds"):
        page.get_by_text(text).first.wait_for(timeout=MINUTE)
    shown = page.inner_text("body")
    assert "earlier baseline" not in shown
    assert "is invalid" not in shown
    found = client.search_runs([experiment.experiment_id], "tags.`rampline.kind` = 'run'")
    runs = [run for run in found if run.data.tags["rampline.execution"].endswith(execution)]
    # The faster one first.
    first, second = sorted(runs, key=lambda run: -run.data.metrics["speedup"])
    lines = shown.splitlines()
    assert lines.index(str(first.info.run_name)) < lines.index(str(second.info.run_name))
    page.set_viewport_size(USUAL)
    picture(page, "mlflow-charts")
    page.goto(f"{mlflow}/{compare_page(experiment.experiment_id, [run.info.run_id for run in runs])}")
    page.get_by_text("Comparing 2 Runs").first.wait_for(timeout=MINUTE)
    for metric in ("images_per_second", "speedup", "test_accuracy"):
        scroll_to(page, metric)
    picture(page, "mlflow-compare")


def scroll_to(page: Page, metric: str) -> None:
    """Down the table of metrics: MLflow draws the rows in view alone, and a run with a quote has more of them."""
    found, end = page.get_by_text(metric, exact=True).filter(visible=True), time.monotonic() + MINUTE / 1000
    while not found.count():
        assert time.monotonic() < end, metric
        page.locator(".ReactVirtualized__Grid").evaluate_all("grids => grids.forEach(grid => grid.scrollTop += 100)")
        page.wait_for_timeout(200)


@pytest.mark.long
def test_cancelling_in_the_page_ends_every_role(stack: Flows, page: Page):
    flow_run = stack.start("study", only=["multi-worker"], epochs=FOR_EVER)
    execution = stack.until_training(flow_run, "multi-worker").parent.name
    open_flow_run(page, stack.state.prefect_url, flow_run)
    cancel(page)
    assert wait_until(lambda: not stack.roles(), 20) < 20
    page.get_by_text("Cancelled", exact=True).first.wait_for(timeout=2 * MINUTE)
    picture(page, "prefect-cancelled")
    assert stack.until(flow_run, *ENDED)["state_type"] == "CANCELLED"
    assert mlflow_tags(stack.state.mlflow_url, execution)["multi-worker"]["status"] == "KILLED"


@contextmanager
def every_minute(stack: Flows, deployment: str) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """A schedule of the deployment, switched off; yields a function that finds its flow runs.

    Afterwards nothing of it holds the devices that the next test wants.
    """
    parameters = {"study": "digits", "only": ["baseline"], "epochs": FOR_EVER, "overrides": QUICK}
    schedule = {"schedule": {"cron": "* * * * *", "timezone": "UTC"}, "active": False, "parameters": parameters}
    (made,) = stack.api.post(f"/deployments/{deployment}/schedules", [schedule | {"slug": "every-minute"}])
    scheduled = {"flow_runs": {"deployment_id": {"any_": [deployment]}, "tags": {"all_": ["auto-scheduled"]}}}

    def flow_runs() -> list[dict[str, Any]]:
        return stack.api.post("/flow_runs/filter", scheduled)

    try:
        yield flow_runs
    finally:
        stack.api.request("DELETE", f"/deployments/{deployment}/schedules/{made['id']}")
        for found in flow_runs():
            if found["state_type"] in ("PENDING", "RUNNING"):
                stack.cancel(found["id"])
                stack.until(found["id"], *ENDED)


@pytest.mark.long
def test_an_every_minute_schedule_trains_and_skips_while_it_does(stack: Flows, page: Page):
    deployment = stack.api.request("GET", "/deployments/name/study/study")["id"]
    with every_minute(stack, deployment) as flow_runs:

        def in_state(name: str) -> list[str]:
            return [found["id"] for found in flow_runs() if found["state_name"] == name]

        switch_on_schedule(page, stack.state.prefect_url, deployment, "every-minute")
        wait_until(lambda: bool(in_state("Running")), 150)
        wait_until(lambda: bool(in_state("Skipped")), 150)
        assert len(in_state("Running")) == 1
        picture(page, "prefect-schedule")
        open_flow_run(page, stack.state.prefect_url, in_state("Skipped")[0])
        page.get_by_text("Skipped", exact=True).first.wait_for(timeout=MINUTE)
