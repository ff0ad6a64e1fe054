"""The store is opened quietly, made once by however many processes, and is the user's where there is one."""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from other_user import closed

from rampline.files import locked, write_text
from rampline.record.home import Home
from rampline.tracking.store import PLACES, TrackingError, experiment_id, open_tracking

OPEN = """
import pathlib, sys
from rampline.record.home import Home
from rampline.tracking.store import open_tracking, experiment_id
home = Home(root=pathlib.Path(sys.argv[1]))
client = open_tracking(home)
run = client.create_run(experiment_id(client, "digits", home))
client.log_metric(run.info.run_id, "m", 1.0)
client.set_terminated(run.info.run_id)
"""


def start(home: Home) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW")}
    return subprocess.Popen(
        [sys.executable, "-c", OPEN, str(home.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


@pytest.mark.long
def test_four_processes_open_a_fresh_database_at_once_and_none_fails_or_prints(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    home = Home(root=tmp_path / "home with space")
    processes = [start(home) for _ in range(4)]
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert printed == [""] * 4
    assert [process.returncode for process in processes] == [0] * 4

    client = open_tracking(home)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home with space"]


@pytest.mark.long
def test_a_process_killed_while_it_makes_the_database_leaves_one_that_opens(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = Home(root=tmp_path / "home")
    process = start(home)
    while not home.tracking_database.exists() or home.tracking_database.stat().st_size < 100_000:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert "Default" in [experiment.name for experiment in open_tracking(home).search_experiments()]


def test_the_users_tracking_uri_is_respected(home, tmp_path, monkeypatch, initialised):
    elsewhere = tmp_path / "elsewhere.db"
    elsewhere.write_bytes(initialised.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere}")
    client = open_tracking(home)
    experiment_id(client, "mine", home)
    assert client.tracking_uri == f"sqlite:///{elsewhere}"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert open_tracking(home).get_experiment_by_name("mine") is None


def test_a_store_that_cannot_be_used_is_one_line_without_the_password(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with contextlib.closing(sqlite3.connect(home.tracking_database)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    for uri in ("http://me:secret@127.0.0.1:9", f"sqlite:///{home.tracking_database}"):
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        with pytest.raises(TrackingError, match=r"^MLflow at .* cannot be used: ") as caught:
            open_tracking(home)
        assert "\n" not in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.mark.timeout(60)
def test_who_waits_for_a_server_that_does_not_answer_holds_up_no_other(home, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with locked(home.root / ".mlflow.lock"), pytest.raises(TrackingError):
        open_tracking(home)


def test_a_deleted_experiment_is_restored_with_its_artifacts_in_the_home(client, home):
    first = experiment_id(client, "digits", home)
    assert client.get_experiment(first).artifact_location == (home.artifacts / "digits").as_uri()
    client.delete_experiment(first)
    assert experiment_id(client, "digits", home) == first
    assert client.get_experiment(first).lifecycle_stage == "active"


def places(home: Home) -> set[str]:
    with contextlib.closing(sqlite3.connect(home.tracking_database)) as database:
        return {row[0] for table, column in PLACES for row in database.execute(f"SELECT {column} FROM {table}")}


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_home_that_was_copied_or_moved_has_its_own_artifacts(home, tmp_path, monkeypatch, is_moved, caplog):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    client = open_tracking(home)
    experiment = experiment_id(client, "100% mine", home)
    run_id = client.create_run(experiment).info.run_id
    report = home.artifacts / "100% mine" / run_id / "artifacts" / "report.txt"
    write_text(report, "the original's")
    model = client.create_logged_model(experiment, name="m", source_run_id=run_id)
    client.create_registered_model("m")
    client.create_model_version("m", str(model.artifact_location), run_id)
    before = places(home)

    copy = Home(root=tmp_path / "the copy")
    (shutil.move if is_moved else shutil.copytree)(home.root, copy.root)
    caplog.clear()
    client = open_tracking(copy)
    assert len(caplog.records) == 1
    ours, theirs = copy.artifacts.as_uri(), home.artifacts.as_uri()
    assert places(copy) == {place.replace(theirs, ours) for place in before if place}
    assert len([place for place in places(copy) if place.startswith(ours)]) == 3
    client.log_text(run_id, "the copy's", "report.txt")
    written = {path: path.read_text() for path in tmp_path.rglob("report.txt")}
    originals = {} if is_moved else {report: "the original's"}
    assert written == {copy.root / report.relative_to(home.root): "the copy's"} | originals

    link = Home(root=tmp_path / "link")
    link.root.symlink_to(copy.root)
    kept = places(copy)
    for each in (copy, link):  # once for all, and a link is no other place
        open_tracking(each)
        assert places(each) == kept


def test_artifacts_that_are_in_another_home_alone_stay_there(home, tmp_path, monkeypatch):
    """A database that was the MLFLOW_TRACKING_URI of another home."""
    other = Home(root=tmp_path / "other")
    open_tracking(home)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home.tracking_database}")
    client = open_tracking(other)
    run = client.create_run(experiment_id(client, "mine", other))
    client.log_text(run.info.run_id, "there", "report.txt")
    before = places(home)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    open_tracking(home)
    assert places(home) == before


def test_a_home_that_was_copied_from_another_user_has_its_own_artifacts(home, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    experiment_id(open_tracking(home), "mine", home)
    # pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as folder:
        copy = Home(root=Path(folder) / "copy")
        shutil.copytree(home.root, copy.root)
        for path in (copy.root.parent, copy.root, *copy.root.rglob("*")):
            path.chmod(0o777)
        with closed(home.root):
            open_tracking(copy)
        assert {place for place in places(copy) if "/mine" in place} == {f"{copy.artifacts.as_uri()}/mine"}
