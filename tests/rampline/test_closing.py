"""How an execution ends in MLflow, and the command that it keeps there."""

import contextlib
import shutil

import pytest
from executions import begin

from rampline.errors import Preempted, RunFailed
from rampline.execution import close_execution, closing, command_of, start_execution
from rampline.record.home import Home
from rampline.study.execution_file import Execution
from rampline.tracking.store import TrackingError, open_tracking


@pytest.mark.parametrize(
    ("error", "status", "in_mlflow", "failure"),
    [
        (None, "COMPLETE", "FINISHED", None),
        (RunFailed("no"), "FAILED", "FAILED", "no"),
        (Preempted("asked to stop"), "PREEMPTED", "KILLED", "asked to stop"),
        (KeyboardInterrupt(), "KILLED", "KILLED", "interrupted"),
    ],
)
def test_an_execution_ends_as_its_block_does(tmp_path, monkeypatch, initialised, error, status, in_mlflow, failure):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = Home(root=tmp_path)
    shutil.copy(initialised, home.tracking_database)
    execution = begin("digits", home, only=["baseline"])
    with contextlib.suppress(RunFailed, Preempted, KeyboardInterrupt), closing(execution):
        if error is not None:
            raise error
    run = open_tracking(home).get_run(execution.parent_run_id)
    assert (run.data.tags["rampline.status"], run.info.status) == (status, in_mlflow)
    assert run.data.tags.get("rampline.failure") == failure


def test_an_execution_that_has_begun_goes_on_without_mlflow_and_a_new_one_does_not_begin(
    tmp_path, monkeypatch, initialised, caplog
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = Home(root=tmp_path)
    shutil.copy(initialised, home.tracking_database)
    begun = begin("digits", home, only=["baseline"])
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        again = Execution.open(begun.folder)
        start_execution(again)
        assert again.parent_run_id == begun.parent_run_id
        assert "MLflow does not answer, e1 goes on: MLflow at http://127.0.0.1:9 cannot be used: " in caplog.text
        with pytest.raises(TrackingError, match="cannot be used"):
            begin("digits", home, "e2", only=["baseline"])
        assert not (home.runs / "digits" / "e2").exists()
    close_execution(again, "COMPLETE")
    assert open_tracking(home).get_run(begun.parent_run_id).info.status == "FINISHED"


def test_the_command_in_mlflow_has_no_credentials():
    overrides = {"data.source": "csv:https://me:hunter2@host/x.csv", "epochs": "2"}
    expected = "rampline run digits --only baseline --set data.source=csv:https://***@host/x.csv --set epochs=2"
    assert command_of("digits", ["baseline"], overrides) == expected
