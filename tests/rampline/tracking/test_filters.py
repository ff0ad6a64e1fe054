"""The filters of docs/operations.md, as MLflow's search field takes them."""

import pytest

from rampline.tracking.reconciliation import Known, Moment, Record, reconcile

FILTERS = {
    "tags.`rampline.kind` = 'run' and tags.`rampline.execution` = 'e1'": {"baseline", "mirrored", "failed"},
    "tags.`rampline.run` = 'baseline' and tags.`rampline.status` = 'COMPLETE'": {"baseline"},
    "tags.`rampline.parity` = 'pass' and metrics.scaling_efficiency > 0.8": {"mirrored"},
    "params.strategy = 'mirrored' and params.replicas = '2'": {"mirrored"},
    "tags.`rampline.bound` = 'input'": {"mirrored"},
    "tags.`rampline.kind` = 'run' and attributes.status != 'FINISHED'": {"failed"},
    "tags.`rampline.failure` LIKE '%worker%'": {"failed"},
    "tags.`rampline.kind` = 'run' and tags.`rampline.attempts` != '1'": {"failed"},
    "tags.`rampline.stopped` LIKE '%target accuracy%'": {"mirrored"},
    "tags.`rampline.kind` = 'run' and dataset.digest LIKE '0123abcd%'": {"baseline", "mirrored", "failed"},
}


@pytest.fixture
def experiment(client, parent, deliver, make_run_directory, started, append_events):
    mirrored = {"strategy": "mirrored", "cluster": {"replicas": 2, "virtual_devices": 2}}
    for name, settings in (("baseline", {"strategy": "single"}), ("mirrored", mirrored), ("failed", {"epochs": 3})):
        directory = make_run_directory(name, **settings)
        attempt = 2 if name == "failed" else 1
        append_events(directory, started(replicas=2 if name == "mirrored" else 1, attempt=attempt))
        run_id = deliver(directory, *(("FAILED", "worker 1 died") if name == "failed" else ("COMPLETE",)))
        if name == "mirrored":
            tags = {"rampline.parity": "pass", "rampline.bound": "input"}
            tags["rampline.stopped"] = "after epoch 2 of 3: target accuracy 0.9 reached"
            record = Record(tags=tags, moments=[Moment(figures={"scaling_efficiency": 0.9}, time=1000.0)])
            reconcile(client, record, Known.ask(client, run_id))
    return client.get_run(parent).info.experiment_id


def test_filters_find_the_runs_that_they_are_for(client, experiment):
    found = {each: {run.info.run_name for run in client.search_runs([experiment], each)} for each in FILTERS}
    assert found == FILTERS
