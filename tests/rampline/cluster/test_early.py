"""Worker processes that were started before they were needed: they do what they were started for, or are ended."""

import os
import subprocess
from pathlib import Path

import pytest
from runs import make_config

from rampline.cluster import early
from rampline.cluster.early import count_import, end_early, start_early, take_early
from rampline.cluster.process import start_roles_early
from rampline.cluster.supervisor import supervise
from rampline.files import read_json


@pytest.fixture(autouse=True)
def no_worker_left():
    yield
    end_early()


def processes() -> list[subprocess.Popen[bytes]]:
    return [worker.process for worker in early._waiting]


def test_roles_train_the_run_and_print_to_its_logs(make_run) -> None:
    config = make_config("multi_worker", workers=2)
    directory = make_run(config, epochs=1)
    start_roles_early(directory.path, config)
    started = [process.pid for process in processes()]
    supervise(directory, on_event=lambda event: None, log=print)
    roles = read_json(directory.roles_file)["roles"]
    assert sorted(role["pid"] for role in roles) == sorted(started)
    assert directory.is_complete
    assert processes() == []
    # Printed while it imported TensorFlow, when it had no log yet.
    assert all("oneDNN" in Path(role["log"]).read_text() for role in roles)


@pytest.mark.parametrize("change", ["environment", "working folder", "died"])
def test_one_that_would_not_do_is_ended(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_early([str(tmp_path / "run")])
    (process,) = processes()
    environment = {**os.environ, "RAMPLINE_PARENT_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1", "TF_CONFIG": "{}"}
    if change == "environment":
        environment["TF_ENABLE_ONEDNN_OPTS"] = "0"  # TensorFlow reads it when it is imported
    elif change == "working folder":
        monkeypatch.chdir(tmp_path)
    else:
        process.kill()
        process.wait()
    assert take_early([str(tmp_path / "run")], tmp_path / "log", environment) is None
    assert process.poll() is not None


def test_other_work_leaves_it_alone(tmp_path: Path) -> None:
    start_early([str(tmp_path / "run")])
    assert take_early([str(tmp_path / "another")], tmp_path / "log", os.environ) is None
    assert [process.poll() for process in processes()] == [None]
    (process,) = processes()
    end_early()
    assert process.poll() is not None


@pytest.mark.parametrize("launched, counted", [(20.0, 16.0), (12.0, 10.0), (9.0, 9.0)], ids=["after", "amid", "before"])
def test_the_import_counts_in_the_wall_time(launched: float, counted: float) -> None:
    assert count_import(launched, began=10.0, ready=14.0) == counted
