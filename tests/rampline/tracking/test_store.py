"""The store is opened quietly, made once by however many processes, and is the user's where there is one."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

from rampline.record.home import Home
from rampline.tracking.store import TrackingError, experiment_id, open_tracking

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


def test_a_deleted_experiment_is_restored_with_its_artifacts_in_the_home(client, home):
    first = experiment_id(client, "digits", home)
    assert client.get_experiment(first).artifact_location == (home.artifacts / "digits").as_uri()
    client.delete_experiment(first)
    assert experiment_id(client, "digits", home) == first
    assert client.get_experiment(first).lifecycle_stage == "active"
