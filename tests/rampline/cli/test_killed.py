"""`kill -9` of `rampline run`, and the loss of Prefect or MLflow in the middle of a training, with everything real."""

import contextlib
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow.tracking import MlflowClient
from mlflow_server import MlflowServer
from prefect_server_fixture import wait_for

from rampline.tracking.delivery_state import is_undelivered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SMALL = ("run", "digits", "--only", "baseline", "--set", "data.limit=20")


def wait_until(is_so: Callable[[], bool], seconds: float) -> float:
    """Wait for a condition; returns the seconds it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + seconds
        time.sleep(0.1)
    return time.monotonic() - began


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """What the process prints up to the line with `text`."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return "".join(lines)
    raise AssertionError("".join(lines))


def run_directory(home: Path) -> Path:
    (directory,) = home.glob("runs/digits/*/baseline")
    return directory


def mlflow_tags(uri: str) -> dict[str, dict[str, str]]:
    """Tags, and MLflow's own status as `status`, by name of run; `study` is the execution."""
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    return {run.data.tags.get("rampline.run", "study"): run.data.tags | {"status": run.info.status} for run in runs}


def flow_run_states(url: str) -> list[str]:
    """State types of all flow runs that the server knows."""
    request = urllib.request.Request(f"{url}/flow_runs/filter", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return [flow_run["state_type"] for flow_run in found]


def points(database: Path, metric: str) -> list[tuple[int, int]]:
    """(step, how often it is there) of a metric in MLflow's own table, in the order of the table."""
    query = "SELECT step, COUNT(*) FROM metrics WHERE key = ? GROUP BY step ORDER BY MIN(rowid)"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, (metric,)).fetchall()


def test_after_kill_9_nothing_runs_or_looks_as_if_it_did(rampline, command, home, server):
    process = command(*SMALL, "--set", "epochs=40", prefect=server.prefect)
    read_until(process, "epoch 2/")
    roles = [role["pid"] for role in json.loads((run_directory(home) / "roles.json").read_text())["roles"]]
    assert all(psutil.pid_exists(pid) for pid in roles)
    os.kill(process.pid, signal.SIGKILL)
    uri = f"sqlite:///{home}/mlflow.db"
    gone = wait_until(lambda: not any(psutil.pid_exists(pid) for pid in roles), 15)
    prefect = gone + wait_until(lambda: not {"RUNNING", "PENDING"} & set(flow_run_states(server.url)), 30)
    mlflow = prefect + wait_until(lambda: {run["status"] for run in mlflow_tags(uri).values()} == {"KILLED"}, 30)
    sys.stdout.write(f"kill -9: roles gone after {gone:.1f} s, Prefect {prefect:.1f} s, MLflow {mlflow:.1f} s\n")
    assert flow_run_states(server.url).count("CRASHED") == 2
    for run in mlflow_tags(uri).values():
        assert run["rampline.status"] == "KILLED"
        assert run["rampline.failure"] == "the process that ran it was killed"
    wait_until(lambda: not guardians(home), 30)

    resumed = rampline("run", "digits", "--resume", prefect=server.prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "epoch 1/40" not in resumed.stdout
    assert {name: run["rampline.status"] for name, run in mlflow_tags(uri).items()} == {
        "study": "COMPLETE",
        "baseline": "COMPLETE",
    }
    assert points(home / "mlflow.db", "train_loss") == [(step, 1) for step in range(1, 41)]


def guardians(home: Path) -> list[int]:
    """Process ids of the guardians of executions in this home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            if "rampline.guardian" in command and command[-1].startswith(str(home)):
                found.append(process.pid)
    return found


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[MlflowServer]:
    """A server that the test kills and starts again."""
    mlflow_server = MlflowServer(tmp_path)
    mlflow_server.start()
    yield mlflow_server
    mlflow_server.kill()


@pytest.mark.parametrize("seconds", [float(os.environ.get("RAMPLINE_TEST_OUTAGE_SECONDS", "8"))])
def test_training_does_not_wait_for_an_mlflow_server_that_is_killed(command, home, server, mlflow_server, seconds):
    environment = server.prefect | {"MLFLOW_TRACKING_URI": mlflow_server.uri}
    process = command(*SMALL, "--set", "epochs=200", prefect=environment)
    read_until(process, "epoch 2/")
    mlflow_server.kill()
    killed = time.time()
    time.sleep(seconds)
    mlflow_server.start()
    back = time.time()
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(60) == 0, rest
    assert rest.count("MLflow does not answer, training goes on") == 1
    assert "MLflow answers again" in rest
    events = [json.loads(line) for line in (run_directory(home) / "events.jsonl").read_text().splitlines()]
    ends = [event["time"] for event in events if event["event"] == "epoch"]
    epochs = [(end - begin, killed < end < back) for begin, end in itertools.pairwise(ends)]
    during = [seconds for seconds, is_away in epochs if is_away]
    longest_else = max(seconds for seconds, is_away in epochs if not is_away)
    away = f"{len(during)} epochs in an outage of {back - killed:.0f} s, the longest {max(during):.2f} s"
    sys.stdout.write(f"{away}; {longest_else:.2f} s outside of it\n")
    assert len(during) > 5
    assert max(during) < 2.0
    for metric in ("train_loss", "val_accuracy", "epoch_seconds", "elapsed_seconds"):
        assert points(mlflow_server.database, metric) == [(step, 1) for step in range(1, 201)]
    tags = mlflow_tags(mlflow_server.uri)
    assert {name: run["rampline.status"] for name, run in tags.items()} == {"study": "COMPLETE", "baseline": "COMPLETE"}
    assert not any(is_undelivered(file.parent) for file in home.rglob("delivery.json"))


def test_a_run_whose_tracking_never_came_back_is_delivered_later(rampline, command, home, server, mlflow_server):
    environment = server.prefect | {"MLFLOW_TRACKING_URI": mlflow_server.uri, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    process = command(*SMALL, "--set", "epochs=20", prefect=environment)
    read_until(process, "epoch 2/")
    mlflow_server.kill()
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(300) == 1
    assert "Traceback" not in rest
    assert "baseline: MLflow has not got all of it: `rampline sync digits` delivers the rest later" in rest
    assert re.search(r"rampline: error: the runs cannot be compared: .*`rampline sync digits`, then `rampline", rest)
    assert (run_directory(home) / "result.json").is_file()
    away = rampline("sync", prefect=environment)
    assert (away.returncode, away.stderr.count("\n")) == (1, 1)

    mlflow_server.start()
    synced = rampline("sync", "digits", prefect=environment)
    assert (synced.returncode, synced.stderr) == (0, "")
    assert re.search(r"baseline: delivered \d+ epochs, result, evaluation, COMPLETE", synced.stdout)
    assert points(mlflow_server.database, "train_loss") == [(step, 1) for step in range(1, 21)]
    tags = mlflow_tags(mlflow_server.uri)
    assert {name: run["status"] for name, run in tags.items()} == {"study": "FAILED", "baseline": "FINISHED"}
    compared = rampline("compare", "digits", prefect=environment)
    assert compared.returncode == 0
    assert "report  " in compared.stdout
    assert rampline("sync", prefect=environment).stdout == "MLflow has everything\n"


@pytest.fixture
def own_prefect(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """A Prefect server that the test kills: its process, and the variables that lead a command to it."""
    port = MlflowServer(tmp_path).port
    url = f"http://127.0.0.1:{port}/api"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with open(tmp_path / "prefect.log", "w") as log:
        process = subprocess.Popen(command, env=kept | own, stdout=log, stderr=log, start_new_session=True)
    wait_for(f"{url}/health")
    yield process, own | {"PREFECT_API_URL": url}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_losing_prefect_does_not_end_the_roles(rampline, command, home, server, own_prefect):
    prefect, environment = own_prefect
    process = command(*SMALL, "--set", "epochs=20", prefect=environment)
    read_until(process, "epoch 2/")
    os.killpg(prefect.pid, signal.SIGKILL)
    assert process.stdout is not None
    began = time.monotonic()
    rest = process.stdout.read()
    assert process.wait(280) == 1
    sys.stdout.write(f"left {time.monotonic() - began:.0f} s after the loss of Prefect\n")
    assert "epoch 20/20" in rest
    assert (run_directory(home) / "result.json").is_file()
    errors = [line for line in rest.splitlines() if line.startswith("rampline: error: ")]
    assert len(errors) == 1
    assert "stopped answering" in errors[0]
    assert "`rampline run digits --resume` continues" in rest
    for noise in ("Traceback", "httpx", "--- Error logging"):
        assert noise not in rest
    tags = mlflow_tags(f"sqlite:///{home}/mlflow.db")
    assert {name: run["rampline.status"] for name, run in tags.items()} == {"study": "FAILED", "baseline": "COMPLETE"}
    resumed = rampline("run", "digits", "--resume", prefect=server.prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "report  " in resumed.stdout


def test_a_preempted_run_stops_the_study_and_is_continued(rampline, command, home, server):
    process = command(*SMALL, "--only", "baseline-fit", "--set", "epochs=200", prefect=server.prefect)
    read_until(process, "epoch 2/")
    (role,) = json.loads((run_directory(home) / "roles.json").read_text())["roles"]
    os.kill(role["pid"], signal.SIGTERM)
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(60) == 143
    assert "preempted: " in rest
    assert "`rampline run digits --resume` continues it" in rest
    assert "Traceback" not in rest
    assert "baseline-fit" not in rest
    tags = mlflow_tags(f"sqlite:///{home}/mlflow.db")
    assert {name: (run["status"], run["rampline.status"]) for name, run in tags.items()} == {
        "study": ("KILLED", "PREEMPTED"),
        "baseline": ("KILLED", "PREEMPTED"),
    }
    resumed = rampline("run", "digits", "--resume", prefect=server.prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert points(home / "mlflow.db", "train_loss") == [(step, 2) for step in range(1, 201)]


def test_credentials_reach_neither_mlflow_nor_the_terminal(rampline, home, server):
    secret = "hunter2hunter2"
    source = f"data.source=csv:https://me:{secret}@127.0.0.1:9/x.csv"
    refused = rampline(*SMALL, "--set", source, prefect=server.prefect)
    assert refused.returncode == 2
    assert secret not in refused.stdout + refused.stderr
    environment = server.prefect | {
        "MLFLOW_TRACKING_URI": f"http://me:{secret}@127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "PREFECT_API_KEY": secret,
    }
    away = rampline(*SMALL, prefect=environment)
    assert away.returncode == 1
    assert re.match(r"rampline: error: MLflow at http://\*\*\*@127\.0\.0\.1:9 cannot be used: ", away.stderr)
    assert secret not in away.stdout + away.stderr
    assert not (home / "runs").exists()
