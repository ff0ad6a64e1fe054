"""An execution in MLflow: its tags, its comparison, and that nothing stays RUNNING after it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rampline.record.provenance import git_commit, process_identity
from rampline.study import load_study
from rampline.tracking.run_log import RunLog
from rampline.tracking.store import TrackingError
from rampline.tracking.study_log import StudyLog, study_tags

OPEN_AND_WAIT = """
import pathlib, sys, time
from rampline.record.home import Home
from rampline.tracking.store import open_tracking, experiment_id
from rampline.tracking.study_log import StudyLog
home = Home(root=pathlib.Path(sys.argv[1]))
client = open_tracking(home)
print(StudyLog.open(client, experiment_id(client, "digits", home), study="digits", execution="lost").run_id, flush=True)
time.sleep(60)
"""


def test_tags_say_what_the_execution_is(client, study_log):
    run = client.get_run(study_log.run_id)
    expected = {
        "rampline.kind": "study",
        "rampline.study": "digits",
        "rampline.execution": "e1",
        "rampline.git_commit": git_commit(),
        "rampline.process": process_identity(),
        "rampline.environment.cpu cores": str(os.cpu_count()),
    }
    assert {name: run.data.tags.get(name) for name in expected} == expected
    assert (run.info.run_name, run.info.status) == ("e1", "RUNNING")


def test_an_execution_is_described_before_there_is_a_comparison():
    note = study_tags(load_study("digits"))["mlflow.note.content"]
    assert note.startswith("Trains 5 runs:\n\n- **baseline**: One device, our training loop.\n")


def test_a_second_comparison_replaces_the_first(client, study_log, tmp_path, history):
    table, report = tmp_path / "comparison.csv", tmp_path / "report.html"
    for speedup, text in ((1.5, "first"), (1.5, "second"), (1.8, "third")):
        table.write_text(text)
        report.write_text(text)
        study_log.log_comparison(
            params={"strategy/multi-worker": "multi_worker"},
            metrics={"speedup/multi-worker": speedup},
            tags={"mlflow.note.content": text},
            files=[table, report],
        )
    run = client.get_run(study_log.run_id)
    assert run.data.params == {"strategy/multi-worker": "multi_worker"}
    assert history(client, study_log.run_id, "speedup/multi-worker") == [(0, 1.5), (0, 1.8)]
    assert run.data.metrics["speedup/multi-worker"] == 1.8
    assert run.data.tags["mlflow.note.content"] == "third"
    assert [file.path for file in client.list_artifacts(study_log.run_id)] == ["comparison.csv", "report.html"]
    assert Path(client.download_artifacts(study_log.run_id, "report.html")).read_text() == "third"


def test_closing_an_execution_ends_its_runs_that_were_left_running(client, study_log, make_run_directory):
    left = RunLog.open(client, make_run_directory("left"), parent_run_id=study_log.run_id)
    ended = RunLog.open(client, make_run_directory("ended"), parent_run_id=study_log.run_id)
    ended.close("COMPLETE")
    stopped = RunLog.open(client, make_run_directory("stopped"), parent_run_id=study_log.run_id)
    study_log.close("FAILED", "run left failed", ends={"stopped": ("PREEMPTED", "stopped at step 3")})
    status = {run_id: client.get_run(run_id).info.status for run_id in (left.run_id, ended.run_id, study_log.run_id)}
    assert status == {left.run_id: "KILLED", ended.run_id: "FINISHED", study_log.run_id: "FAILED"}
    tags = client.get_run(stopped.run_id).data.tags
    assert (tags["rampline.status"], tags["rampline.failure"]) == ("PREEMPTED", "stopped at step 3")
    assert client.get_run(study_log.run_id).data.tags["rampline.failure"] == "run left failed"


def test_what_a_killed_process_left_running_is_ended_by_the_next_execution(client, home, study_log):
    command = [sys.executable, "-c", OPEN_AND_WAIT, str(home.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lost = process.stdout.readline().strip()
    experiment = client.get_run(lost).info.experiment_id

    second = StudyLog.open(client, experiment, study="digits", execution="e2")
    assert client.get_run(lost).info.status == "RUNNING"  # its process is alive
    process.send_signal(signal.SIGKILL)
    process.wait()
    StudyLog.open(client, experiment, study="digits", execution="e3")
    run = client.get_run(lost)
    assert (run.info.status, run.data.tags["rampline.failure"]) == ("KILLED", "the process that ran it is gone")
    assert [client.get_run(log.run_id).info.status for log in (study_log, second)] == ["RUNNING", "RUNNING"]

    again = StudyLog.reopen(client, lost)
    run = client.get_run(lost)
    assert (again.run_id, run.info.status) == (lost, "RUNNING")
    assert "rampline.failure" not in run.data.tags


def test_an_execution_that_mlflow_does_not_have_is_one_line(client):
    with pytest.raises(TrackingError, match=r"MLflow run 0123 cannot be continued: .*not found"):
        StudyLog.reopen(client, "0123")
