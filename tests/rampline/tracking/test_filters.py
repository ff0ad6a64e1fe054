"""The filters of docs/operations.md, as MLflow's search field takes them."""

import pytest

from rampline.tracking.run_log import RunLog
from rampline.tracking.store import log_figures

FILTERS = {
    "tags.`rampline.kind` = 'run' and tags.`rampline.execution` = 'e1'": {"baseline", "mirrored", "failed"},
    "tags.`rampline.run` = 'baseline' and tags.`rampline.status` = 'COMPLETE'": {"baseline"},
    "tags.`rampline.parity` = 'pass' and metrics.scaling_efficiency > 0.8": {"mirrored"},
    "params.strategy = 'mirrored' and params.replicas = '2'": {"mirrored"},
    "tags.`rampline.bound` = 'input'": {"mirrored"},
    "tags.`rampline.kind` = 'run' and attributes.status != 'FINISHED'": {"failed"},
    "tags.`rampline.failure` LIKE '%worker%'": {"failed"},
    "tags.`rampline.kind` = 'run' and tags.`rampline.attempts` != '1'": {"failed"},
    "tags.`rampline.kind` = 'run' and dataset.digest LIKE '0123abcd%'": {"baseline", "mirrored", "failed"},
}


@pytest.fixture
def experiment(client, study_log, make_run_directory, started):
    mirrored = {"strategy": "mirrored", "cluster": {"replicas": 2, "virtual_devices": 2}}
    for name, settings in (("baseline", {"strategy": "single"}), ("mirrored", mirrored), ("failed", {"epochs": 3})):
        log = RunLog.open(client, make_run_directory(name, **settings), parent_run_id=study_log.run_id)
        log.handle(started(replicas=2 if name == "mirrored" else 1, attempt=2 if name == "failed" else 1))
        if name == "mirrored":
            client.set_tag(log.run_id, "rampline.parity", "pass")
            client.set_tag(log.run_id, "rampline.bound", "input")
            log_figures(client, log.run_id, {"scaling_efficiency": 0.9})
        log.close("FAILED" if name == "failed" else "COMPLETE", "worker 1 died" if name == "failed" else None)
    return client.get_run(study_log.run_id).info.experiment_id


def test_filters_find_the_runs_that_they_are_for(client, experiment):
    found = {each: {run.info.run_name for run in client.search_runs([experiment], each)} for each in FILTERS}
    assert found == FILTERS
