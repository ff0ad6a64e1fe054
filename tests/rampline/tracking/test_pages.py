"""The pages that Rampline prepares in MLflow, on a real server and in a real browser."""

import json
from urllib.parse import parse_qs

import pytest
from browser import start_browser
from mlflow_server import MlflowServer

from rampline.record.delivery_state import mark_undelivered
from rampline.study import load_study
from rampline.tracking.delivery import Projection
from rampline.tracking.experiment import begin_run, open_experiment
from rampline.tracking.pages import LATEST, artifact_page, compare_page, experiment_page, run_page
from rampline.tracking.reconciliation import Known, Moment, Record, reconcile


def test_addresses():
    assert run_page("1", "ab") == "#/experiments/1/runs/ab?workflowType=machine_learning"
    assert artifact_page("1", "ab", "a b.html").startswith("#/experiments/1/runs/ab/artifacts/a%20b.html?")
    page, _, query = compare_page("1", ["ab", "cd"]).partition("?")
    assert page == "#/compare-runs"
    assert json.loads(parse_qs(query)["runs"][0]) == ["ab", "cd"]
    assert json.loads(parse_qs(query)["experiments"][0]) == ["1"]


@pytest.fixture
def experiment(client, home, make_run_directory, started, epoch, append_events):
    """Two executions of two runs each, of three epochs."""
    experiment = ""
    for execution in ("e1", "e2"):
        experiment = open_experiment(client, load_study("digits"), home, execution=execution)
        parent = begin_run(client, experiment, study="digits", execution=execution)
        for number, name in enumerate(("baseline", "mirrored"), start=1):
            directory = make_run_directory(f"{execution} {name}", execution)
            append_events(directory, started(replicas=number), epoch(1), epoch(2), epoch(3))
            mark_undelivered(directory.path, "COMPLETE")
            projection = Projection(client, directory, parent)
            projection.update()
            figures = Moment(figures={"speedup": 0.8 + number, "test_accuracy": 0.9}, time=2000.0)
            reconcile(client, Record(moments=[figures]), Known.ask(client, projection.run_id))
        reconcile(client, Record(status="COMPLETE"), Known.ask(client, parent))
    return experiment


# tests/flows/test_in_the_browser.py opens this view in the gate.
@pytest.mark.slow
@pytest.mark.long
def test_the_view_of_the_latest_execution_compares_its_runs(home, experiment):
    server = MlflowServer(home.root)
    server.start()
    try:
        with start_browser() as browser:
            page = browser.new_page(viewport={"width": 1600, "height": 1400})
            page.goto(f"{server.uri}/{experiment_page(experiment, LATEST, charts=True)}")
            for text in (
                "Rampline: latest execution",
                "2 matching runs",
                "In the end",
                "By wall clock",
                "elapsed_seconds",
            ):
                page.get_by_text(text).first.wait_for(timeout=60_000)
            text = page.inner_text("body")
            assert text.index("e2 mirrored") < text.index("e2 baseline")  # the faster one first
            assert "e1 " not in text
            assert "is invalid" not in text
    finally:
        server.kill()
