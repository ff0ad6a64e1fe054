"""The evaluation of a run that has ended: scores, pictures, reports and the model, once."""

import hashlib
import json
import zipfile

import pytest

from rampline.files import write_json
from rampline.tracking.run_artifacts import log_evaluation
from rampline.tracking.run_log import RunLog
from rampline.tracking.store import TrackingError


def test_an_evaluation_is_logged_once_on_a_run_that_has_ended(
    client, study_log, make_run_directory, evaluation, history
):
    directory = make_run_directory()
    log = RunLog.open(client, directory, parent_run_id=study_log.run_id)
    log.close("COMPLETE")
    write_json(directory.evaluation_file, evaluation)
    (directory.path / "model_summary.txt").write_text("Total params: 7\n")
    (directory.path / "predictions.csv").write_text("index,label,prediction,probability\n0,1,1,0.5\n")
    with zipfile.ZipFile(directory.path / "model.keras", "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
    log_evaluation(client, directory, evaluation)
    log_evaluation(client, directory, evaluation)

    run = client.get_run(log.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["rampline.test_split"] == "test"
    answers = (directory.path / "predictions.csv").read_bytes()
    assert run.data.tags["rampline.answers"] == hashlib.sha256(answers).hexdigest()[:16]
    assert history(client, log.run_id, "test_accuracy") == [(0, 0.9)]
    assert history(client, log.run_id, "test_loss") == [(0, 0.25)]
    assert history(client, log.run_id, "test_examples") == [(0, 20)]
    assert len(run.outputs.model_outputs) == 1
    names = {file.path for file in client.list_artifacts(log.run_id)}
    assert names == {
        "config.json",
        "data_report",
        "confusion_matrix.png",
        "classification_report.csv",
        "classification_report.json",
        "evaluation.json",
        "model_summary.txt",
        "predictions.csv",
    }

    log_evaluation(client, directory, evaluation | {"test_accuracy": 0.95})
    assert history(client, log.run_id, "test_accuracy") == [(0, 0.9), (0, 0.95)]
    assert client.get_run(log.run_id).data.metrics["test_accuracy"] == 0.95


def test_a_directory_that_was_never_logged_is_one_line(client, make_run_directory, evaluation):
    directory = make_run_directory()
    with pytest.raises(TrackingError, match=f"{directory.path} has no run in MLflow"):
        log_evaluation(client, directory, evaluation)
