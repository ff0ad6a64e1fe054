"""The commands that start nothing; tests/test_golden.py has what they print."""

import shutil
from importlib.metadata import version

from rampline.files import write_json
from rampline.record.home import Home
from rampline.study import load_study
from rampline.study.execution_file import Execution
from rampline.tracking.store import open_tracking


def test_the_version_is_that_of_the_package(rampline, home):
    shown = rampline("--version")
    assert (shown.returncode, shown.stdout) == (0, f"rampline {version('rampline')}\n")


def test_worker_refuses_what_is_no_run_directory(rampline, tmp_path):
    result = rampline("worker", str(tmp_path))
    assert result.returncode == 2
    assert result.stderr.startswith("rampline: error: ")
    assert "is no run directory" in result.stderr


def test_the_card_of_a_study_with_nothing_but_a_run(rampline, home, tmp_path):
    (tmp_path / "mine.yaml").write_text("runs: {only: {set: {batch: {size: 48}}}}")
    text = " ".join(rampline("studies", "mine.yaml").stdout.split())
    assert "only (reference) single 1 48" in text
    for absent in ("teaches", "prices", "published"):
        assert absent not in text
    assert not home.exists()


def test_an_execution_that_cannot_be_delivered_keeps_no_other_from_it(rampline, home, initialised):
    home.mkdir()
    shutil.copy(initialised, home / "mlflow.db")
    write_json(home / "runs" / "digits" / "e1" / "execution.json", {"version": 99, "began": 1.0})
    study, kept = load_study("digits", only=["baseline"]), Home(root=home)
    Execution(folder=home / "runs" / "digits" / "e2", study=study, home=kept, parent_run_id="0" * 32).write()
    done = rampline("sync")
    assert (done.returncode, done.stderr) == (
        1,
        "rampline: error: 1 of 2 executions could not be delivered: see above\n",
    )
    assert done.stdout.startswith("digits/e1: ")
    assert "newer rampline (version 99)" in " ".join(done.stdout.split())
    experiment = open_tracking(kept).get_experiment_by_name("digits")
    assert experiment is not None
    (run,) = open_tracking(kept).search_runs([experiment.experiment_id])
    assert run.data.tags["rampline.execution"] == "e2"
