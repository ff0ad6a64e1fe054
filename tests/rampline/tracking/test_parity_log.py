"""What MLflow holds of a parity check."""

import json

import pytest
from mlflow.artifacts import download_artifacts

from rampline.parity.check import Neutralised, ParityResult
from rampline.tracking.run_artifacts import log_parity
from rampline.tracking.run_log import RunLog

LAYERS = (Neutralised(layer="Dropout", count=2, why="because"),)
PASS = ParityResult(status="pass", max_loss_diff=1e-15, max_weight_diff=2e-16, neutralised=LAYERS)
ASYNCHRONOUS = ParityResult(status="not_applicable", reason="asynchronous", mean_staleness=0.5, max_staleness=3)
NOT_FINITE = ParityResult(status="fail", reason="nan", losses=(1.0, None))


@pytest.mark.parametrize(
    "result, figures",
    [
        (PASS, {"parity_max_loss_diff": 1e-15, "parity_max_weight_diff": 2e-16}),
        (ASYNCHRONOUS, {"parity_mean_staleness": 0.5, "parity_max_staleness": 3.0}),
        (NOT_FINITE, {}),
    ],
    ids=["pass", "asynchronous", "not finite"],
)
def test_a_result_is_logged_once(client, study_log, make_run_directory, history, result, figures):
    run_id = RunLog.open(client, make_run_directory(), parent_run_id=study_log.run_id).run_id
    log_parity(client, run_id, result)
    log_parity(client, run_id, result)
    run = client.get_run(run_id)
    assert run.data.tags["rampline.parity"] == result.status
    assert {name: value for name, value in run.data.metrics.items() if name.startswith("parity_")} == figures
    assert all(history(client, run_id, name) == [(0, value)] for name, value in figures.items())
    path = download_artifacts(run_id=run_id, artifact_path="parity.json", tracking_uri=client.tracking_uri)
    with open(path) as file:
        content = json.load(file)
    assert (content["status"], content["reason"]) == (result.status, result.reason)


def test_a_result_survives_its_file(tmp_path):
    PASS.write(tmp_path / "parity.json")
    assert ParityResult.read(tmp_path / "parity.json") == PASS
