"""The same against an MLflow server, and one that goes away."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from rampline.tracking.run_artifacts import log_evaluation
from rampline.tracking.run_log import EPOCH_METRICS, RunLog
from rampline.tracking.store import experiment_id, open_tracking
from rampline.tracking.study_log import StudyLog


class Server:
    """A real `mlflow server` on a free loopback port, over the test's database."""

    def __init__(self, home) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._home = home

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{self._home.tracking_database}"]
        command += ["--artifacts-destination", str(self._home.artifacts)]
        self._log = open(self._home.root / "server.log", "a")  # noqa: SIM115 - closed in stop
        environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        deadline = time.monotonic() + 60
        while not self._is_healthy():
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
                return answer.status == 200
        except OSError:
            return False


@pytest.fixture
def server(home, monkeypatch):
    server = Server(home)
    server.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    yield server
    if server.process.poll() is None:
        server.stop()


@pytest.mark.slow
def test_a_run_over_http_survives_a_server_that_restarts(
    server, home, make_run_directory, started, epoch, append_events, evaluation, history, capfd, caplog
):
    client = open_tracking(home)
    assert client.tracking_uri == server.uri
    study = StudyLog.open(client, experiment_id(client, "digits", home), study="digits", execution="e1")
    directory = make_run_directory()
    log = RunLog.open(client, directory, parent_run_id=study.run_id)
    events = [started(), epoch(1), epoch(2, train_loss=None), epoch(3), epoch(4), epoch(5)]
    append_events(directory, *events)
    for event in events[:4]:
        log.handle(event)
    log_evaluation(client, directory, evaluation)
    assert history(client, log.run_id, "train_loss") == [(1, 1.0), (3, pytest.approx(1 / 3))]
    assert client.get_run(log.run_id).data.params["global_batch_size"] == "64"
    names = {file.path for file in client.list_artifacts(log.run_id)}
    assert {"config.json", "confusion_matrix.png", "classification_report.csv"} <= names

    server.stop()
    for event in events[4:]:
        log.handle(event)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [warning.partition(":")[0] for warning in warnings] == ["MLflow does not answer, training goes on"]

    server.start()
    log.close("FINISHED")
    study.close("FINISHED")
    for metric in EPOCH_METRICS:
        steps = [1, 3, 4, 5] if metric == "train_loss" else [1, 2, 3, 4, 5]
        assert [step for step, _ in history(client, log.run_id, metric)] == steps
    run = client.get_run(log.run_id)
    assert (run.info.status, run.data.metrics["test_accuracy"]) == ("FINISHED", 0.9)
    assert client.get_run(study.run_id).info.status == "FINISHED"
    assert "learning_rate.png" in {file.path for file in client.list_artifacts(log.run_id)}
    assert capfd.readouterr() == ("", "")
