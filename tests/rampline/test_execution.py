"""An execution stage by stage: damaged data is found, and a killed run goes on where it was."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from executions import begin
from faults import assert_bit_equal

from rampline.data.dataset import PreparedDataset
from rampline.errors import DatasetError, RunFailed
from rampline.execution import close_execution, compare_runs, evaluate_runs, train_run
from rampline.files import read_json, write_json
from rampline.jobs.waiting import wait_until
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.study.execution_file import Execution
from rampline.tracking.store import open_tracking

STUDY = """
name: small
base:
  epochs: 6
  data: {source: digits, limit: 12, cache: memory}
  batch: {size: 28}
  steps_per_call: 2
  parity: {steps: 0}
  explain: {steps: 0}
  cluster: {max_restarts: 0}
runs:
  whole: {}
  killed: {set: {checkpoint_every_steps: 3}}
"""


@pytest.fixture
def home(rampline_home: Path) -> Home:
    return Home(root=rampline_home)


@pytest.fixture
def execution(digits: PreparedDataset, home: Home, forks: None, tmp_path: Path) -> Execution:
    study = tmp_path / "small.yaml"
    study.write_text(STUDY)
    return begin(study, home, f"x-{tmp_path.name}")


def kill_after(directory: RunDirectory, checkpoints: int) -> threading.Thread:
    """A thread that kills the role once the run has told of so many checkpoints."""

    def run() -> None:
        wait_until(lambda: len(directory.read_events("checkpoint")) >= checkpoints, 120, every=0.02)
        (role,) = read_json(directory.roles_file)["roles"]
        os.kill(role["pid"], signal.SIGKILL)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def kill_the_evaluation() -> None:
    """The process that scores, as soon as there is one: another takes its place."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):  # one that has just ended
                if any(part.endswith("/evaluation") for part in process.cmdline()):
                    process.kill()
                    return
        time.sleep(0.02)
    raise TimeoutError("no evaluation was started")


def train(execution: Execution, run: str) -> dict:
    return train_run(execution, run, on_event=lambda event: None, log=print)


def test_a_damaged_dataset_is_found_before_a_role_starts(execution: Execution, digits: PreparedDataset) -> None:
    images = digits.images_file("train")
    content = images.read_bytes()
    images.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    try:
        with pytest.raises(DatasetError, match=r"train_images\.bin is not as it was prepared: delete"):
            train(execution, "whole")
    finally:
        images.write_bytes(content)
    assert not execution.directory("whole").roles_file.exists()


def test_a_killed_run_goes_on_and_ends_with_the_same_bits(execution: Execution, home: Home) -> None:
    train(execution, "whole")
    directory = execution.directory("killed")
    killer = kill_after(directory, checkpoints=5)
    with pytest.raises(RunFailed, match="chief 0 was ended by signal 9"):
        train(execution, "killed")
    killer.join()
    result = train(execution, "killed")
    assert result["attempts"] == 2
    assert result["steps"] == 30
    assert_bit_equal(directory, execution.directory("whole"))
    run_id = read_json(directory.tracking_file)["run_id"]
    history = open_tracking(home).get_metric_history(run_id, "train_loss")
    assert [point.step for point in history] == [1, 2, 3, 4, 5, 6]
    started = time.monotonic()
    assert train(execution, "killed") == result
    assert time.monotonic() - started < 5  # a complete run is not trained again
    killer = threading.Thread(target=kill_the_evaluation)
    killer.start()
    scores = evaluate_runs(execution, ["whole", "killed"], on_event=lambda event: None)
    killer.join()
    assert scores["whole"]["test_loss"] == scores["killed"]["test_loss"]
    assert scores["whole"]["examples"] == 120
    close_execution(execution, "COMPLETE")
    assert compare_runs(execution).is_file()
    identity = read_json(directory.identity_file)
    write_json(directory.identity_file, identity | {"dataset": str(home.data / "deleted")})
    assert compare_runs(execution).is_file()
