"""How an execution ends in MLflow, and the command that it keeps there."""

import contextlib

import pytest
from executions import begin

from rampline.errors import Preempted, RunFailed, TakenOver
from rampline.execution import _how_stopped, close_execution, closing, command_of, start_execution
from rampline.record.delivery_state import read_delivery
from rampline.record.events import EventReader, EventWriter
from rampline.study.execution_file import Execution, began_at
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
def test_an_execution_ends_as_its_block_does(tracked_home, error, status, in_mlflow, failure):
    execution = begin("digits", tracked_home, only=["baseline"])
    with contextlib.suppress(RunFailed, Preempted, KeyboardInterrupt), closing(execution):
        if error is not None:
            raise error
    run = open_tracking(tracked_home).get_run(execution.parent_run_id)
    assert (run.data.tags["rampline.status"], run.info.status) == (status, in_mlflow)
    assert run.data.tags.get("rampline.failure") == failure


def test_of_several_stops_the_last_one_counts_unless_the_run_was_started_again_after_it(tmp_path):
    """An elastic run stops, too, when there is room for more workers."""
    writer, told = EventWriter(tmp_path / "events.jsonl"), []
    for event in ("started", "stopped", "started", "stopped"):
        writer.write(event, step=len(told), epoch=1)
        told.append(_how_stopped(EventReader(tmp_path / "events.jsonl")))
    assert told == [None, "stopped on request at step 1 (epoch 1)", None, "stopped on request at step 3 (epoch 1)"]


def test_an_execution_that_has_begun_goes_on_without_mlflow_and_a_new_one_does_not_begin(
    tracked_home, monkeypatch, caplog
):
    begun = begin("digits", tracked_home, only=["baseline"])
    with monkeypatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        again = Execution.open(begun.folder)
        start_execution(again)
        assert again.parent_run_id == begun.parent_run_id
        assert "MLflow does not answer, e1 goes on: MLflow at http://127.0.0.1:9 cannot be used: " in caplog.text
        with pytest.raises(TrackingError, match="cannot be used"):
            begin("digits", tracked_home, "e2", only=["baseline"])
        assert not (tracked_home.runs / "digits" / "e2").exists()
    close_execution(again, "COMPLETE")
    run = open_tracking(tracked_home).get_run(begun.parent_run_id)
    assert run.info.status == "FINISHED"
    assert run.info.start_time == int(1000 * began_at(begun.folder))  # by that it is found again


def test_a_new_execution_that_cannot_be_written_leaves_nothing_in_mlflow(tracked_home):
    (tracked_home.runs / "digits").mkdir(parents=True)
    (tracked_home.runs / "digits" / "e1").touch()  # no folder can be made there
    with pytest.raises(OSError, match="e1"):
        begin("digits", tracked_home, only=["baseline"])
    client = open_tracking(tracked_home)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    assert client.search_runs([experiment.experiment_id]) == []


@pytest.mark.parametrize("error", [TakenOver("e1 goes on in process 7 of b"), RunFailed("no")])
def test_what_another_machine_has_taken_over_is_not_to_be_delivered(tracked_home, error):
    execution = begin("digits", tracked_home, only=["baseline"])
    with contextlib.suppress(RunFailed), closing(execution):
        raise error
    state, run = read_delivery(execution.folder), open_tracking(tracked_home).get_run(execution.parent_run_id)
    assert state is not None
    assert state.delivered
    expected = ("KILLED", "RUNNING") if isinstance(error, TakenOver) else ("FAILED", "FAILED")
    assert (state.status, run.info.status) == expected


def test_the_command_in_mlflow_has_no_credentials():
    overrides = {"data.source": "csv:https://me:hunter2@host/x.csv", "epochs": "2"}
    expected = "rampline run digits --only baseline --set data.source=csv:https://***@host/x.csv --set epochs=2"
    assert command_of("digits", ["baseline"], overrides) == expected
