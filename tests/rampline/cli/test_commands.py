"""The commands that start nothing; tests/test_golden.py has what they print."""

import os
import re
import shutil
import subprocess
from importlib.metadata import version

from command_line import RAMPLINE, environment_with

from rampline.files import write_json
from rampline.record.home import Home
from rampline.servers.running import ProcessState, Servers, state_file
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


def test_a_model_becomes_champion_or_challenger_and_nothing_else(rampline, home):
    result = rampline("promote", "a-run", "--as", "best")
    assert result.returncode == 2
    assert "'best' is not one of 'champion', 'challenger'" in " ".join(result.stderr.split())


def test_the_card_of_a_study_with_nothing_but_a_run(rampline, home, tmp_path):
    (tmp_path / "mine.yaml").write_text("runs: {only: {set: {batch: {size: 48}}}}")
    text = " ".join(rampline("studies", "mine.yaml").stdout.split())
    assert "only (reference) single 1 48" in text
    for absent in ("teaches", "prices", "published"):
        assert absent not in text
    assert not home.exists()


def test_the_parts_of_a_rampline_up_that_was_killed(rampline, home):
    started = ProcessState(pid=1, identity="host:1:2", log="worker.log")
    servers = Servers(
        pid=1,
        identity="host:1:2",
        ready=True,
        prefect_api_url="http://127.0.0.1:9/api",
        mlflow_url="http://127.0.0.1:9",
        processes={"mlflow": started},
    )
    home.mkdir(mode=0o700)
    servers.write(state_file(Home(root=home)))
    told = rampline("status")
    assert (told.returncode, told.stderr) == (1, "")
    assert [line.split("  ")[0] for line in told.stdout.splitlines()] == ["up", "prefect", "mlflow", "worker"]
    up, prefect, mlflow, worker = (re.split(" {2,}", line, maxsplit=2)[1:] for line in told.stdout.splitlines())
    assert up == ["was killed", str(home)]
    assert prefect == ["does not answer http://127.0.0.1:9"]
    assert mlflow[0] == "not running"
    assert worker == ["not running", "pool rampline"]


def test_a_home_whose_name_is_no_text_is_told_of(home):
    environment = {os.fsencode(name): os.fsencode(value) for name, value in environment_with(home).items()}
    environment[b"RAMPLINE_HOME"] = os.fsencode(home) + b"/caf\xe9"
    told = subprocess.run([RAMPLINE, "status"], env=environment, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (1, "")
    assert told.stdout == f"nothing is up in {home}/caf\\udce9: `rampline up` starts it\n"


def test_where_nothing_has_run_nothing_is_made_to_deliver_it(rampline, home):
    done = rampline("sync")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"nothing has run in {home}\n", "")
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
