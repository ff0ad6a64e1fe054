"""A study's experiment: description and views, and what a person changes of them stays; and the runs of executions."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rampline.record.provenance import git_commit, process_identity
from rampline.study import load_study
from rampline.tracking.experiment import (
    LONGEST_TAG,
    begin_run,
    continue_run,
    describe_study,
    end_abandoned,
    open_experiment,
    study_tags,
)
from rampline.tracking.pages import ALL, LATEST, SORTED_BY, VIEW_TAG
from rampline.tracking.store import TrackingError

OPEN_AND_WAIT = """
import pathlib, sys, time
from rampline.record.home import Home
from rampline.tracking.experiment import begin_run
from rampline.tracking.store import open_tracking, experiment_id
home = Home(root=pathlib.Path(sys.argv[1]))
client = open_tracking(home)
print(begin_run(client, experiment_id(client, "digits", home), study="digits", execution="lost"), flush=True)
time.sleep(60)
"""


@pytest.fixture
def study():
    return load_study("digits")


def test_an_experiment_is_described_by_its_study(client, home, study):
    experiment = client.get_experiment(open_experiment(client, study, home, execution="e1"))
    assert experiment.name == "digits"
    note = experiment.tags["mlflow.note.content"]
    assert note.startswith("The demo: 1,797 real handwritten digits")
    assert study.teaches.strip() in note
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_views_show_the_latest_execution_and_all_of_them(client, home, study):
    for execution in ("e1", "20261121-191912-3bba"):
        tags = client.get_experiment(open_experiment(client, study, home, execution=execution)).tags
    assert all(len(value) < LONGEST_TAG for value in tags.values())
    envelopes = {key: json.loads(tags[f"{VIEW_TAG}{key}"]) for key in (LATEST, ALL)}
    states = {key: json.loads(envelope["state"]) for key, envelope in envelopes.items()}
    assert [envelope["name"] for envelope in envelopes.values()] == [
        "Rampline: latest execution",
        "Rampline: all executions",
    ]
    runs = "tags.`rampline.kind` = 'run'"
    assert states[ALL]["searchFilter"] == runs
    assert states[LATEST]["searchFilter"] == f"{runs} and tags.`rampline.execution` = '20261121-191912-3bba'"
    assert states[LATEST]["orderByKey"] == SORTED_BY
    by_time = [chart for chart in states[ALL]["compareRunCharts"] if chart.get("xAxisKey") == "metric"]
    assert {chart["selectedXAxisMetricKey"] for chart in by_time} == {"elapsed_seconds"}


def test_what_a_person_has_written_or_saved_stays(client, home, study):
    experiment = open_experiment(client, study, home, execution="e1")
    saved = json.loads(client.get_experiment(experiment).tags[f"{VIEW_TAG}{LATEST}"])
    saved |= {"updatedAt": saved["createdAt"] + 1000, "state": "{}"}
    client.set_experiment_tag(experiment, f"{VIEW_TAG}{LATEST}", json.dumps(saved))
    client.set_experiment_tag(experiment, f"{VIEW_TAG}{ALL}", "not even JSON")
    client.set_experiment_tag(experiment, "mlflow.note.content", "mine")
    before = client.get_experiment(experiment).tags
    assert open_experiment(client, dataclasses.replace(study, description="new"), home, execution="e2") == experiment
    assert client.get_experiment(experiment).tags == before


def test_a_long_description_is_cut(study):
    assert len(describe_study(dataclasses.replace(study, description="long " * 3000))) == LONGEST_TAG


def test_tags_say_what_the_execution_is(client, parent):
    run = client.get_run(parent)
    expected = {
        "rampline.kind": "study",
        "rampline.study": "digits",
        "rampline.execution": "e1",
        "rampline.git_commit": git_commit(),
        "rampline.process": process_identity(),
        "rampline.status": "RUNNING",
        "rampline.environment.cpu cores": str(os.cpu_count()),
    }
    assert {name: run.data.tags.get(name) for name in expected} == expected
    assert (run.info.run_name, run.info.status) == ("e1", "RUNNING")


def test_an_execution_is_described_before_there_is_a_comparison(study):
    note = study_tags(study, Path())["mlflow.note.content"]
    assert note.startswith("Trains 5 runs:\n\n- **baseline**: One device, our training loop.\n")


def test_a_tag_is_no_longer_than_a_store_takes(client, parent):
    experiment = client.get_run(parent).info.experiment_id
    tags = {"mlflow.note.content": "one run after the other " * 1000}
    run = client.get_run(begin_run(client, experiment, study="digits", execution="e2", tags=tags))
    assert 1000 < len(run.data.tags["mlflow.note.content"]) <= 8000


@pytest.mark.long
def test_what_a_killed_process_left_running_is_ended_by_the_next_execution(client, home, parent):
    command = [sys.executable, "-c", OPEN_AND_WAIT, str(home.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lost = process.stdout.readline().strip()
    experiment = client.get_run(lost).info.experiment_id

    second = begin_run(client, experiment, study="digits", execution="e2")
    assert client.get_run(lost).info.status == "RUNNING"  # its process is alive
    process.send_signal(signal.SIGKILL)
    process.wait()
    begin_run(client, experiment, study="digits", execution="e3")
    run = client.get_run(lost)
    assert (run.info.status, run.data.tags["rampline.failure"]) == ("KILLED", "the process that ran it is gone")
    assert [client.get_run(run_id).info.status for run_id in (parent, second)] == ["RUNNING", "RUNNING"]

    continue_run(client, lost)
    run = client.get_run(lost)
    assert (run.info.status, run.data.tags["rampline.process"]) == ("RUNNING", process_identity())
    assert "rampline.failure" not in run.data.tags


LOG_SEARCH = """
import pathlib, sys, time
from rampline.config import RunConfig
from rampline.record.home import Home
from rampline.tracking import reconciliation
from rampline.tuning import outcome
home = Home(root=pathlib.Path(sys.argv[1]))
def wait(*arguments):
    print("begun", flush=True)
    time.sleep(60)
outcome.reconcile = wait
empty = dict(adopted={}, before_after=None, baseline=(), shown=(), is_compiled=False, notes=(), seconds=1.0)
trials = (outcome.Trial(group="xla", changes={"xla": True}, status="measured"),)
found = outcome.Outcome(run="baseline", config=RunConfig(), trials=trials, **empty)
outcome.log_search(found, "digits", home, name="tune-1")
"""


def test_trials_that_a_killed_process_left_running_are_ended(client, home, parent):
    with subprocess.Popen([sys.executable, "-c", LOG_SEARCH, str(home.root)], stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"begun\n"
        killed.kill()
    experiment = client.get_run(parent).info.experiment_id
    end_abandoned(client, experiment)
    kinds = {run.data.tags["rampline.kind"]: run.info.status for run in client.search_runs([experiment])}
    assert kinds == {"study": "RUNNING", "tune": "KILLED", "trial": "KILLED"}


def test_an_execution_that_mlflow_does_not_have_is_one_line(client):
    with pytest.raises(TrackingError, match=r"MLflow run 0123 cannot be continued: .*not found"):
        continue_run(client, "0123")
