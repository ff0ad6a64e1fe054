"""The same against an MLflow server, and one that goes away."""

import pytest
from mlflow_server import MlflowServer

from rampline.files import write_json
from rampline.record.metric import Source
from rampline.record.metrics import logged
from rampline.tracking.delivery import Delivery, deliver_run
from rampline.tracking.experiment import begin_run
from rampline.tracking.store import experiment_id, open_tracking


@pytest.fixture
def server(home, monkeypatch):
    server = MlflowServer(home.root)
    server.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    yield server
    server.kill()


@pytest.mark.long
def test_a_run_over_http_survives_a_server_that_restarts(
    server, home, make_run_directory, started, epoch, append_events, evaluation, history, capfd
):
    client = open_tracking(home)
    assert client.tracking_uri == server.uri
    parent = begin_run(client, experiment_id(client, "digits", home), study="digits", execution="e1")
    directory, lines = make_run_directory(), []
    delivery = Delivery(lambda: open_tracking(home), directory, parent_run_id=parent, log=lines.append)
    events = [started(), epoch(1), epoch(2, train_loss=None), epoch(3), epoch(4), epoch(5)]
    for event in events[:4]:
        append_events(directory, event)
    server.kill()
    for event in events[4:]:
        append_events(directory, event)
    server.start()
    assert delivery.close("COMPLETE")
    write_json(directory.evaluation_file, evaluation)
    deliver_run(client, directory)

    (run,) = client.search_runs([client.get_run(parent).info.experiment_id], "tags.`rampline.kind` = 'run'")
    for metric in logged(Source.EPOCH):
        steps = [1, 3, 4, 5] if metric == "train_loss" else [1, 2, 3, 4, 5]
        assert [step for step, _ in history(client, run.info.run_id, metric)] == steps
    assert run.data.params["global_batch_size"] == "64"
    assert run.inputs is not None
    assert [given.dataset.name for given in run.inputs.dataset_inputs] == ["digits"]
    assert "**test accuracy 0.9000** on 20 images" in run.data.tags["mlflow.note.content"]
    assert (run.info.status, run.data.metrics["test_accuracy"]) == ("FINISHED", 0.9)
    names = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"config.json", "learning_rate.png", "confusion_matrix.png", "classification_report.csv"} <= names
    assert capfd.readouterr() == ("", "")
