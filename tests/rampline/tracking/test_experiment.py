"""A study's experiment: description and views, and what a person changes of them stays."""

import dataclasses
import json

import pytest

from rampline.study import load_study
from rampline.tracking.pages import ALL, LATEST, SORTED_BY, VIEW_TAG
from rampline.tracking.study_log import LONGEST_TAG, describe_study, open_experiment


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
