"""Delivering later, into the store that was away or into another one, as often as somebody asks."""

import contextlib
import dataclasses
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time

import psutil
import pytest

from rampline.comparison.mlflow_reader import epoch_rows
from rampline.errors import DatasetError
from rampline.files import locked, write_json
from rampline.record.delivery_state import FILE, is_undelivered, mark_undelivered
from rampline.record.metric import Source
from rampline.record.metrics import logged
from rampline.record.provenance import process_identity
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.study import load_study
from rampline.study.execution_file import Execution, began_at, find_executions
from rampline.tracking.delivery import CLOSE_SECONDS
from rampline.tracking.store import TrackingError, open_tracking
from rampline.tracking.sync import end_execution, find_parent, sync_execution

RESULT = {"status": "complete", "train_seconds": 4.5, "wall_seconds": 12.0, "attempts": 2, "best_epoch": 2}


@pytest.fixture
def execution(client, home, parent, dataset, started, epoch, append_events, evaluation):
    """An execution of two runs: `baseline` was completed and evaluated without MLflow, `baseline-fit` has failed."""
    folder = home.runs / "digits" / "e1"
    study = load_study("digits", only=["baseline", "baseline-fit"])
    execution = Execution(folder=folder, study=study, home=home, parent_run_id=parent)
    execution.write(began=client.get_run(parent).info.start_time / 1000)
    for run in study.runs:
        directory = RunDirectory(folder / run.name)
        directory.create(run.config, RunIdentity(study="digits", name=run.name, dataset=str(dataset)))
        append_events(directory, started(attempt=2), epoch(1), epoch(2), epoch(3))
    write_json(folder / "baseline" / "result.json", RESULT)
    write_json(folder / "baseline" / "evaluation.json", evaluation)
    mark_undelivered(folder / "baseline", "COMPLETE")
    mark_undelivered(folder / "baseline-fit", "FAILED", "worker 1 died")
    mark_undelivered(folder, "FAILED")
    return execution


def found_in(client, name: str):
    experiment = client.get_experiment_by_name("digits")
    runs = client.search_runs([experiment.experiment_id])
    (run,) = [run for run in runs if run.data.tags.get("rampline.run", "study") == name]
    return run


def check_all(client) -> None:
    """The store has both runs and the execution, each figure once."""
    run = found_in(client, "baseline")
    assert (run.info.status, run.data.tags["rampline.status"]) == ("FINISHED", "COMPLETE")
    assert run.data.tags["rampline.attempts"] == "2"
    assert run.data.params["global_batch_size"] == "64"
    assert (run.data.metrics["train_seconds"], run.data.metrics["test_accuracy"]) == (4.5, 0.9)
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"config.json", "learning_rate.png", "confusion_matrix.png", "evaluation.json"} <= files
    failed = found_in(client, "baseline-fit")
    assert (failed.info.status, failed.data.tags["rampline.failure"]) == ("FAILED", "worker 1 died")
    for metric in (*logged(Source.EPOCH), "train_seconds", "test_accuracy"):
        for one in (run, failed):
            steps = [point.step for point in client.get_metric_history(one.info.run_id, metric)]
            assert steps == ([1, 2, 3] if metric in logged(Source.EPOCH) else [0] if one is run else [])
    parent = found_in(client, "study")
    assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert (parent.info.status, parent.data.tags["rampline.status"]) == ("FAILED", "FAILED")


def test_what_was_left_is_delivered_once(client, execution):
    lines: list[str] = []
    assert sync_execution(client, execution, log=lines.append) == 2
    assert lines == [
        "digits/e1/baseline: delivered 3 epochs, result, evaluation, COMPLETE",
        "digits/e1/baseline-fit: delivered 3 epochs, FAILED",
    ]
    check_all(client)
    assert not any(is_undelivered(file.parent) for file in execution.folder.rglob(FILE))
    assert sync_execution(client, execution, log=lines.append) == 0
    assert len(lines) == 2
    check_all(client)


def test_one_run_can_be_delivered_alone(client, execution):
    assert sync_execution(client, execution, log=print, runs=["baseline-fit"]) == 1
    assert is_undelivered(execution.folder / "baseline")
    assert not is_undelivered(execution.folder / "baseline-fit")


def test_a_fresh_store_gets_everything_and_the_first_one_nothing_twice(
    client, home, execution, monkeypatch, tmp_path, initialised
):
    sync_execution(client, execution, log=print)
    first, made = execution.parent_run_id, began_at(execution.folder)
    shutil.copy(initialised, tmp_path / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'other.db'}")
    other = open_tracking(home)
    assert sync_execution(other, execution, log=print) == 2
    parent = found_in(other, "study")
    assert parent.info.run_id == Execution.open(execution.folder).parent_run_id == execution.parent_run_id != first
    assert parent.data.tags["rampline.execution"] == "e1"
    assert parent.info.start_time == int(1000 * made)
    described = other.get_experiment(parent.info.experiment_id).tags
    assert described["mlflow.note.content"].startswith("The demo: ")
    check_all(other)
    assert began_at(execution.folder) == made
    assert find_executions(home) == [execution.folder]

    assert sync_execution(client, execution, log=print) == 2  # by name: its runs are found again
    assert Execution.open(execution.folder).parent_run_id == first
    check_all(client)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        query = "SELECT COUNT(*) FROM metrics WHERE key = 'train_loss'"
        assert connection.execute(query).fetchone() == (6,)


def test_of_more_executions_than_a_page_of_them_it_is_found(client, execution):
    first = execution.parent_run_id
    with contextlib.closing(sqlite3.connect(execution.home.tracking_database)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(runs)") if name != "run_uuid"]
        later = [name if name != "start_time" else "start_time + 1" for name in columns]
        names, values = ", ".join(columns), ", ".join(later)
        copy = f"INSERT INTO runs (run_uuid, {names}) SELECT ?, {values} FROM runs WHERE run_uuid = ?"
        tags = {"rampline.kind": "study", "rampline.execution": "later"}
        for run_id in (f"{number:032d}" for number in range(1000)):
            connection.execute(copy, (run_id, first))
            rows = [(key, value, run_id) for key, value in tags.items()]
            connection.executemany("INSERT INTO tags (key, value, run_uuid) VALUES (?, ?, ?)", rows)
        connection.commit()
    find_parent(client, execution)
    assert execution.parent_run_id == first
    # By its name, when the store was another one meanwhile.
    execution.parent_run_id = "0" * 31 + "x"
    find_parent(client, execution)
    assert execution.parent_run_id == Execution.open(execution.folder).parent_run_id == first


def test_another_execution_of_the_same_name_is_another_run(client, execution, parent, tmp_path):
    theirs = dataclasses.replace(execution, folder=tmp_path / "theirs" / "e1", parent_run_id="0" * 31 + "x")
    theirs.write()
    find_parent(client, theirs)
    made = theirs.parent_run_id
    for each, run_id in ((execution, parent), (theirs, made)):
        each.parent_run_id = "0" * 31 + "x"
        find_parent(client, each)
        assert each.parent_run_id == run_id
    assert made != parent


def test_an_epoch_that_was_trained_again_by_a_clock_that_is_behind_counts(
    client, execution, started, epoch, append_events, history
):
    sync_execution(client, execution, log=print)
    directory = execution.directory("baseline-fit")
    append_events(directory, started(attempt=2), epoch(3, train_loss=0.125) | {"time": 900.0})
    mark_undelivered(directory.path, "FAILED")
    assert sync_execution(client, execution, log=print) == 1
    run_id = found_in(client, "baseline-fit").info.run_id
    histories = {(run_id, "train_loss"): client.get_metric_history(run_id, "train_loss")}
    assert epoch_rows(found_in(client, "baseline-fit"), histories)[-1]["train_loss"] == 0.125
    mark_undelivered(directory.path, "FAILED")
    sync_execution(client, execution, log=print)
    assert len(history(client, run_id, "train_loss")) == 4


def test_runs_move_below_the_run_that_takes_the_place_of_a_deleted_one(client, execution, parent):
    sync_execution(client, execution, log=print)
    client.delete_run(parent)
    assert sync_execution(client, execution, log=print) == 2
    assert found_in(client, "study").info.run_id == execution.parent_run_id != parent
    assert len(found_in(client, "study").inputs.dataset_inputs) == 1
    for name in ("baseline", "baseline-fit"):
        assert found_in(client, name).data.tags["mlflow.parentRunId"] == execution.parent_run_id
    check_all(client)
    assert sync_execution(client, execution, log=print) == 0


def leave_running(*folders) -> None:
    """What a process leaves there that is killed."""
    code = "import sys, pathlib; from rampline.record.delivery_state import mark_undelivered; "
    code += "[mark_undelivered(pathlib.Path(folder), 'RUNNING') for folder in sys.argv[1:]]"
    subprocess.run([sys.executable, "-c", code, *map(str, folders)], check=True)


def test_a_run_whose_process_was_killed_ends_killed(client, home, execution, parent, epoch):
    directory = execution.directory("baseline-fit")
    leave_running(execution.folder, directory.path)
    sync_execution(client, execution, log=print)
    run = found_in(client, "baseline-fit")
    assert (run.info.status, run.data.tags["rampline.failure"]) == ("KILLED", "the process that ran it is gone")
    assert found_in(client, "study").info.status == "KILLED"


def test_the_end_of_an_execution_is_that_of_its_runs_too(client, execution):
    folder = execution.folder
    for running in (folder, folder / "baseline"):
        mark_undelivered(running, "RUNNING")
    (folder / "baseline" / "result.json").unlink()
    mark_undelivered(folder / "baseline-fit", "PREEMPTED", "stopped at step 3")
    assert end_execution(lambda: client, execution, "FAILED", "run baseline failed") is None
    ends = {name: found_in(client, name) for name in ("baseline", "baseline-fit", "study")}
    assert {name: (run.info.status, run.data.tags["rampline.failure"]) for name, run in ends.items()} == {
        "baseline": ("KILLED", "its execution ended before it did"),
        "baseline-fit": ("KILLED", "stopped at step 3"),
        "study": ("FAILED", "run baseline failed"),
    }
    assert ends["baseline-fit"].data.tags["rampline.status"] == "PREEMPTED"
    assert not any(is_undelivered(file.parent) for file in folder.rglob(FILE))


def test_the_end_of_an_execution_is_delivered_later_where_mlflow_is_away(client, execution):
    def away():
        raise TrackingError("MLflow at http://127.0.0.1:9 cannot be used")

    assert end_execution(away, execution, "KILLED") == "MLflow at http://127.0.0.1:9 cannot be used"
    assert is_undelivered(execution.folder)
    sync_execution(client, execution, log=print)
    assert found_in(client, "study").data.tags["rampline.status"] == "KILLED"


def test_what_another_process_works_on_is_left_to_it(client, execution):
    identity = process_identity().split(":")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as alive:
        started = psutil.Process(alive.pid).create_time()
        state = {"status": "RUNNING", "failure": None, "process": f"{identity[0]}:{alive.pid}:{started:.0f}"}
        write_json(execution.folder / FILE, state)
        lines: list[str] = []
        assert sync_execution(client, execution, log=lines.append) == 0
        assert lines == ["digits/e1: is running, its own process delivers it"]
        alive.communicate(os.linesep.encode())


def test_what_another_machine_has_completed_stays_complete_where_the_first_one_was_killed(client, execution):
    mark_undelivered(execution.folder, "COMPLETE")
    sync_execution(client, execution, log=print)
    # As the first machine has it, which no longer saw the end.
    directory = execution.directory("baseline")
    directory.result_file.unlink()
    leave_running(execution.folder, directory.path)
    lines: list[str] = []
    assert sync_execution(client, execution, log=lines.append) == 0
    assert lines == ["digits/e1/baseline: another machine has completed it"]
    for name in ("baseline", "study"):
        run = found_in(client, name)
        assert (run.info.status, run.data.tags["rampline.status"]) == ("FINISHED", "COMPLETE")
        assert "rampline.failure" not in run.data.tags
    assert not is_undelivered(directory.path)
    assert sync_execution(client, execution, log=lines.append) == 0
    assert len(lines) == 1


def test_a_folder_that_another_process_holds_is_left_to_it(client, execution):
    leave_running(execution.folder)
    lines: list[str] = []
    with locked(execution.folder / ".lock"):
        assert sync_execution(client, execution, log=lines.append) == 0
    assert lines == ["digits/e1: is running, its own process delivers it"]
    assert is_undelivered(execution.folder / "baseline")
    assert sync_execution(client, execution, log=lines.append) == 2


def test_a_run_whose_dataset_was_deleted_is_delivered_without_it(client, execution, dataset):
    shutil.rmtree(dataset)
    assert sync_execution(client, execution, log=print) == 2
    check_all(client)
    run = found_in(client, "baseline")
    assert "rampline.data_fingerprint" not in run.data.tags
    assert not run.inputs.dataset_inputs


def test_a_store_that_hangs_is_waited_for_no_longer_than_said(client, execution, monkeypatch):
    def hang():
        threading.Event().wait()
        return client

    monkeypatch.setitem(CLOSE_SECONDS, "FAILED", 0.3)
    began = time.monotonic()
    assert end_execution(hang, execution, "FAILED") == "MLflow does not answer"
    assert time.monotonic() - began < 2
    assert is_undelivered(execution.folder)


def test_what_ends_the_delivery_is_told(execution):
    def damaged():
        raise DatasetError("it is gone")

    assert end_execution(damaged, execution, "FAILED") == "it is gone"
