"""The two UIs in a real browser, on a real `rampline up`: train from the form, compare in MLflow, cancel, schedule.

With RAMPLINE_SCREENSHOTS set, the pictures of docs/operations.md are written into that folder.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import start_browser
from command_line import mlflow_tags, wait_until
from flow_runs import ENDED, FOR_EVER, QUICK, Flows
from mlflow.tracking import MlflowClient
from PIL import Image
from playwright.sync_api import BrowserContext, Page
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
from rampline.tracking.pages import LATEST, compare_page, experiment_page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MINUTE = 60_000  # ms
COLOURS = 64
QUIET_MLFLOW = """localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true")"""


@pytest.fixture(scope="module")
def context(flows: Flows) -> Iterator[BrowserContext]:
    """A browser that has opened the links that sign in."""
    with start_browser() as browser:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
        context.add_init_script(QUIET_MLFLOW)
        for line in sign_in_lines(flows.home, with_secret=True):
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


def newest_flow_run(flows: Flows, deployment: str) -> str:
    found = flows.api.request("GET", f"/deployments/name/{deployment}/{deployment}")["id"]
    body = {"flow_runs": {"deployment_id": {"any_": [found]}}, "sort": "EXPECTED_START_TIME_DESC"}
    return flows.api.post("/flow_runs/filter", body)[0]["id"]


def test_a_study_from_the_form_to_the_comparison_in_mlflow(flows: Flows, page: Page):
    server = flows.state.prefect_url
    open_form(page, server, "study")
    choose(page, "strategy", "single")
    fill_number(page, "epochs", 0)
    fill_json(page, "overrides", json.dumps(QUICK))
    submit(page)
    field(page, "epochs").get_by_text("0 is not valid").wait_for()
    assert flows.api.post("/flow_runs/filter") == []
    fill_number(page, "epochs", 3)
    picture(page, "prefect-form")
    submit(page)
    wait_until(lambda: flows.api.post("/flow_runs/filter") != [], 30)
    flow_run = newest_flow_run(flows, "study")
    open_flow_run(page, server, flow_run)
    page.get_by_text("Completed", exact=True).first.wait_for(timeout=3 * MINUTE)
    assert flows.flow_run(flow_run)["parameters"]["strategy"] == "single"
    picture(page, "prefect-flow-run")
    open_tab(page, "Artifacts")
    for key in ("comparison-digits", "mlflow-charts-digits", "mlflow-report-digits"):
        page.get_by_text(key).first.wait_for(timeout=MINUTE)
    look_at_mlflow(flows, page)


def look_at_mlflow(flows: Flows, page: Page) -> None:
    mlflow = flows.state.mlflow_url
    client = MlflowClient(mlflow)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    page.goto(f"{mlflow}/{experiment_page(experiment.experiment_id, LATEST)}")
    page.get_by_text("2 matching runs").first.wait_for(timeout=MINUTE)
    for name in ("baseline", "baseline-fit"):
        page.get_by_text(name, exact=True).first.wait_for(timeout=MINUTE)
    picture(page, "mlflow-runs")
    page.goto(f"{mlflow}/{experiment_page(experiment.experiment_id, LATEST, charts=True)}")
    page.get_by_text("By wall clock").first.wait_for(timeout=MINUTE)
    picture(page, "mlflow-charts")
    runs = client.search_runs([experiment.experiment_id], "tags.`rampline.kind` = 'run'")
    page.goto(f"{mlflow}/{compare_page(experiment.experiment_id, [run.info.run_id for run in runs])}")
    page.get_by_text("Comparing 2 Runs").first.wait_for(timeout=MINUTE)
    for metric in ("test_accuracy", "images_per_second", "speedup"):
        page.get_by_text(metric, exact=True).filter(visible=True).first.wait_for(timeout=MINUTE)
    picture(page, "mlflow-compare")


@pytest.mark.long
def test_cancelling_in_the_page_ends_every_role(flows: Flows, page: Page):
    flow_run = flows.start("study", only=["multi-worker"], epochs=FOR_EVER)
    flows.until_training(flow_run, "multi-worker")
    open_flow_run(page, flows.state.prefect_url, flow_run)
    cancel(page)
    assert wait_until(lambda: not flows.roles(), 20) < 20
    page.get_by_text("Cancelled", exact=True).first.wait_for(timeout=2 * MINUTE)
    picture(page, "prefect-cancelled")
    assert flows.until(flow_run, *ENDED)["state_type"] == "CANCELLED"
    assert mlflow_tags(flows.state.mlflow_url)["multi-worker"]["status"] == "KILLED"


@pytest.mark.long
def test_an_every_minute_schedule_trains_and_skips_while_it_does(flows: Flows, page: Page):
    deployment = flows.api.request("GET", "/deployments/name/study/study")["id"]
    parameters = {"study": "digits", "only": ["baseline"], "epochs": FOR_EVER, "overrides": QUICK}
    schedule = {"schedule": {"cron": "* * * * *", "timezone": "UTC"}, "active": False, "parameters": parameters}
    (made,) = flows.api.post(f"/deployments/{deployment}/schedules", [schedule | {"slug": "every-minute"}])
    switch_on_schedule(page, flows.state.prefect_url, deployment, "every-minute")
    scheduled = {"flow_runs": {"deployment_id": {"any_": [deployment]}, "tags": {"all_": ["auto-scheduled"]}}}

    def states() -> list[str]:
        return [found["state_name"] for found in flows.api.post("/flow_runs/filter", scheduled)]

    wait_until(lambda: "Running" in states(), 150)
    wait_until(lambda: "Skipped" in states(), 150)
    assert states().count("Running") == 1
    picture(page, "prefect-schedule")
    flows.api.request("DELETE", f"/deployments/{deployment}/schedules/{made['id']}")
    for found in flows.api.post("/flow_runs/filter", scheduled):
        if found["state_name"] == "Skipped":
            open_flow_run(page, flows.state.prefect_url, found["id"])
            page.get_by_text("Skipped", exact=True).first.wait_for(timeout=MINUTE)
        if found["state_name"] == "Running":
            flows.cancel(found["id"])
            flows.until(found["id"], *ENDED)
