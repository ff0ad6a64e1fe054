"""The watchdog ends what its process leaves behind when it is killed, and nothing else."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
from command_line import wait_until
from own_prefect import PrefectServer
from prefect_rest import PrefectApi
from processes import started_processes_of

from rampline.record.delivery_state import RUNNING, mark_undelivered
from rampline.record.home import Home
from rampline.servers.watchdog import FLOW_RUN, start_watchdog
from rampline.study import load_study
from rampline.study.execution_file import Execution
from rampline.tracking.experiment import begin_run, continue_run
from rampline.tracking.store import experiment_id, open_tracking

# A process that has an execution, as `closing` has: it says so and waits to be killed, or closes it itself.
WATCHED = """
import json, sys
from pathlib import Path
from rampline.servers.watchdog import start_watchdog
from rampline.record.delivery_state import RUNNING, mark_undelivered
from rampline.record.provenance import process_identity
from rampline.study.execution_file import Execution
from rampline.tracking.experiment import continue_run
from rampline.tracking.store import open_tracking
execution = Path(sys.argv[1])
opened = Execution.open(execution)
continue_run(open_tracking(opened.home), opened.parent_run_id)
mark_undelivered(execution, RUNNING)
start_watchdog(execution, process_identity(), json.loads(sys.argv[2]))
print("ready", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def execution(tracked_home: Home) -> Path:
    """An execution in a store of its own."""
    client = open_tracking(tracked_home)
    run_id = begin_run(client, experiment_id(client, "digits", tracked_home), study="digits", execution="e1")
    folder = tracked_home.runs / "digits" / "e1"
    Execution(folder=folder, study=load_study("digits"), home=tracked_home, parent_run_id=run_id).write()
    return folder


def parent(execution: Path) -> tuple[str, dict[str, str]]:
    """Status and tags of the execution in MLflow."""
    client = open_tracking(Home(root=execution.parents[2]))
    run = client.get_run(json.loads((execution / "execution.json").read_text())["parent_run_id"])
    return run.info.status, run.data.tags


def start_watched(execution: Path, prefect: dict[str, str]) -> tuple[subprocess.Popen[str], psutil.Process]:
    command = [sys.executable, "-c", WATCHED, str(execution), json.dumps(prefect)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (watchdog,) = psutil.Process(process.pid).children()
    return process, watchdog


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores that signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    ignored = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return bool(ignored >> (number - 1) & 1)


def flow_run(api: PrefectApi, flow: str, state: str, task_run: str | None = None) -> str:
    body = {"flow_id": flow, "state": {"type": state}, "parent_task_run_id": task_run}
    return api.post("/flow_runs/", body)["id"]


def state_of(api: PrefectApi, run: str) -> str:
    return api.request("GET", f"/flow_runs/{run}")["state_type"]


@pytest.mark.long
def test_after_a_kill_the_execution_is_closed_in_mlflow_and_prefect(
    execution: Path, prefect_server: PrefectServer
) -> None:
    api = prefect_server.api
    flow = api.post("/flows/", {"name": f"flow-{uuid.uuid4()}"})["id"]
    root = flow_run(api, flow, "RUNNING")
    steps = [
        api.post("/task_runs/", {"flow_run_id": root, "task_key": "step", "dynamic_key": key})["id"] for key in "ab"
    ]
    below, done = (
        flow_run(api, flow, state, step) for state, step in zip(("RUNNING", "COMPLETED"), steps, strict=True)
    )
    unrelated = flow_run(api, flow, "RUNNING")
    process, watchdog = start_watched(execution, prefect_server.prefect | {FLOW_RUN: root})
    wait_until(lambda: ignores(watchdog.pid, signal.SIGINT), 30)  # until it has imported what it needs
    assert watchdog.memory_info().rss < 25 * 2**20
    watchdog.send_signal(signal.SIGINT)  # the terminal's Ctrl-C
    process.kill()
    process.wait()
    watchdog.wait(30)
    assert [state_of(api, run) for run in (root, below, done)] == ["CRASHED", "CRASHED", "COMPLETED"]
    assert state_of(api, unrelated) == "RUNNING"
    status, tags = parent(execution)
    assert (status, tags["rampline.status"]) == ("KILLED", "KILLED")
    assert tags["rampline.failure"] == "the process that ran it was killed"


@pytest.mark.long
def test_prefect_being_away_does_not_keep_mlflow_from_being_told(execution: Path) -> None:
    process, watchdog = start_watched(
        execution, {FLOW_RUN: str(uuid.uuid4()), "PREFECT_API_URL": "http://me:hunter2@127.0.0.1:9/api"}
    )
    process.kill()
    process.wait()
    watchdog.wait(30)
    assert parent(execution)[0] == "KILLED"
    assert "hunter2" not in (execution / "watchdog.log").read_text()


@pytest.mark.long
def test_what_another_process_has_taken_over_goes_on(execution: Path) -> None:
    process, watchdog = start_watched(execution, {})
    continue_run(open_tracking(Home(root=execution.parents[2])), parent_run_id(execution))
    mark_undelivered(execution, RUNNING)
    process.kill()
    process.wait()
    watchdog.wait(30)
    assert parent(execution)[0] == "RUNNING"


def parent_run_id(execution: Path) -> str:
    return json.loads((execution / "execution.json").read_text())["parent_run_id"]


def test_a_watchdog_that_is_dismissed_changes_nothing(execution: Path) -> None:
    began = time.monotonic()
    dismiss = start_watchdog(execution, f"host:{os.getpid()}:0", {})
    (number,) = started_processes_of(execution, 1, "rampline.servers.watchdog")
    watchdog = psutil.Process(number)
    dismiss()
    assert time.monotonic() - began < 5
    assert not watchdog.is_running()
    assert parent(execution)[0] == "RUNNING"
    assert not (execution / "watchdog.log").exists()
