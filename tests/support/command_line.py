"""The installed command as a user runs it, what it leaves behind, and servers that it can lose."""

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from mlflow_server import MlflowServer

from rampline.cli import main

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RAMPLINE = Path(sys.executable).with_name("rampline")
UNSET = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
Rampline = Callable[..., subprocess.CompletedProcess[str]]
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


def flow_run_states(url: str, home: Path) -> list[str]:
    """State types of the flow runs of that home's executions; other tests have some on the same server."""
    request = urllib.request.Request(f"{url}/flow_runs/filter", b"{}", {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return [flow_run["state_type"] for flow_run in found if str(home) in flow_run["parameters"].get("execution", "")]


def points(database: Path, metric: str) -> list[tuple[int, int]]:
    """(step, how often it is there) of a metric in MLflow's own table, in the order of the table."""
    query = "SELECT step, COUNT(*) FROM metrics WHERE key = ? GROUP BY step ORDER BY MIN(rowid)"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, (metric,)).fetchall()


def environment_with(home: Path, prefect: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a user who has set nothing but RAMPLINE_HOME, and perhaps what leads to a Prefect server."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET and not name.startswith("PREFECT_")}
    return kept | {"RAMPLINE_HOME": str(home), "COLUMNS": "100"} | (prefect or {})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the command keeps things; not there yet."""
    return tmp_path / "home"


@pytest.fixture
def rampline(home: Path, tmp_path: Path) -> Rampline:
    """`rampline("run", "digits")` runs the command to its end."""

    def call(*arguments: str, prefect: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command, environment = [str(RAMPLINE), *arguments], environment_with(home, prefect)
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=280)

    return call


@pytest.fixture
def invoke(home: Path, tmp_path: Path) -> Rampline:
    """`invoke("plan", "digits")` runs the command to its end in this process, as its program does: it takes no seconds.

    For commands that print or refuse something; what trains, or has a server, is for `rampline`.
    """

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        output, errors = io.StringIO(), io.StringIO()
        with (
            _as_a_program(arguments, tmp_path, environment_with(home)),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
        ):
            status = main()
        return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())

    return call


@contextlib.contextmanager
def _as_a_program(arguments: tuple[str, ...], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """What a program has for itself: arguments, working folder, environment and signal handlers."""
    before, handlers = dict(os.environ), {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["rampline", *arguments])
        patch.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            for number, handler in handlers.items():
                signal.signal(number, handler)


def as_terminal_job() -> None:
    """A shell's background job ignores Ctrl-C, and so does all that it starts: the tests may be such a job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def command(home: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`command("run", "digits")` starts the command in a process group of its own, with one pipe for all it prints."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, prefect: dict[str, str] | None = None) -> subprocess.Popen[str]:
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        place = {"cwd": tmp_path, "env": environment_with(home, prefect), "start_new_session": True}
        started.append(subprocess.Popen([str(RAMPLINE), *arguments], preexec_fn=as_terminal_job, **output, **place))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[MlflowServer]:
    """A server that the test kills and starts again."""
    mlflow_server = MlflowServer(tmp_path)
    mlflow_server.start()
    yield mlflow_server
    mlflow_server.kill()
