"""The command as a user runs it, in this process or in one of its own; what it leaves behind, and what it can lose."""

import contextlib
import importlib
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from mlflow_server import MlflowServer
from prefect_rest import PrefectApi
from runs import SUPPORT
from stored_data import store_here

from rampline.cli import main
from rampline.record.home import Home
from rampline.study import load_study

RAMPLINE = Path(sys.executable).with_name("rampline")
UNSET = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "TF_CONFIG", "CUDA_VISIBLE_DEVICES")
Rampline = Callable[..., subprocess.CompletedProcess[str]]
SMALL = ("run", "digits", "--only", "baseline", "--set", "data.limit=20")
# A study whose runs take their time until the test lets them go on: a clock for tests that disturb a training.
UNHURRIED = str(SUPPORT / "unhurried.yaml")
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def wait_until(is_so: Callable[[], bool], seconds: float, *, every: float = 0.1) -> float:
    """Wait for a condition; returns the seconds it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() < began + seconds
        time.sleep(every)
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
    (directory,) = home.glob("runs/*/*/baseline")
    return directory


def mlflow_tags(uri: str, execution: str = "") -> dict[str, dict[str, str]]:
    """Tags, and MLflow's own status as `status`, by name of run; `study` is the execution.

    Args:
        uri: of the store.
        execution: name of the execution; empty where there is one only.
    """
    # Every test session loads this file: what takes seconds to import waits until a test asks for it.
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.`rampline.execution` = '{execution}'" if execution else "")
    return {run.data.tags.get("rampline.run", "study"): run.data.tags | {"status": run.info.status} for run in runs}


def flow_run_states(api: PrefectApi, home: Path) -> list[str]:
    """State types of that home's studies and their stages; other tests have flow runs on the same server."""
    found = api.post("/flow_runs/filter", {"sort": "START_TIME_DESC"})
    studies = [flow_run for flow_run in found if str(home) in flow_run["parameters"].get("execution", "")]
    parents = {"parent_flow_run_id": {"any_": [flow_run["id"] for flow_run in studies]}}
    return [flow_run["state_type"] for flow_run in (*studies, *api.post("/flow_runs/filter", {"flow_runs": parents}))]


def points(database: Path, metric: str) -> list[tuple[int, int]]:
    """(step, how often it is there) of a metric in MLflow's own table, in the order of the table."""
    query = "SELECT step, COUNT(*) FROM metrics WHERE key = ? GROUP BY step ORDER BY MIN(rowid)"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, (metric,)).fetchall()


def environment_with(home: Path, prefect: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a user who has set RAMPLINE_HOME, and perhaps what leads to a Prefect server."""
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    kept = {name: value for name, value in kept.items() if not name.startswith("PREFECT_")}
    return kept | {"RAMPLINE_HOME": str(home), "COLUMNS": "100"} | dict(prefect or {})


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the command keeps things; not there yet."""
    return tmp_path / "home"


@pytest.fixture(scope="session")
def small_data(rampline_home: Path) -> Path:
    """The folder `data` of a home in which the data of `SMALL` are prepared."""
    (run,) = load_study("digits", only=["baseline"], overrides={"data.limit": "20"}).runs
    store_here(run.config.data, Home(root=rampline_home))
    return rampline_home / "data"


@pytest.fixture
def prepared(home: Path, small_data: Path, initialised: Path) -> None:
    """The home has the data of `SMALL`, and MLflow's tables: both take seconds."""
    home.mkdir(mode=0o700)
    (home / "data").symlink_to(small_data)
    shutil.copy(initialised, home / "mlflow.db")


@pytest.fixture
def rampline(home: Path, tmp_path: Path) -> Rampline:
    """`rampline("plan", "digits")` runs the command to its end in this process, as its program does.

    What needs a Prefect server gets the variables that lead to one as `prefect`.
    """

    def call(*arguments: str, prefect: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        output, errors = io.StringIO(), io.StringIO()
        # It sets up logging when it is imported, and absl (TensorFlow's) then closes its stream if that is not
        # `sys.stderr` at the time: the file of pytest.
        importlib.import_module("prefect.main")
        with contextlib.ExitStack() as stack:
            stack.enter_context(_as_a_program(arguments, tmp_path, environment_with(home, prefect)))
            stack.enter_context(contextlib.redirect_stdout(output))
            stack.enter_context(contextlib.redirect_stderr(errors))
            status = main()
            assert prefect or "PREFECT_API_URL" not in os.environ, "a server of its own lasts as long as this process"
        return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())

    return call


@contextlib.contextmanager
def _as_a_program(arguments: tuple[str, ...], folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """What a program has for itself: arguments, working folder, environment and signal handlers."""
    before, handlers = dict(os.environ), {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    with pytest.MonkeyPatch.context() as patch, prefect_settings(environment):
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


@contextlib.contextmanager
def prefect_settings(environment: Mapping[str, str]) -> Iterator[None]:
    """Prefect has read its settings in another environment, when it was imported."""
    given = {name: value for name, value in environment.items() if name.startswith("PREFECT_")}
    if not given:
        yield
        return
    from prefect import settings

    with settings.temporary_settings({getattr(settings, name): value for name, value in given.items()}):
        yield


@pytest.fixture
def rampline_process(home: Path, tmp_path: Path) -> Rampline:
    """The same in a process of its own, which finds or starts all that it needs."""

    def call(*arguments: str, prefect: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command, environment = [str(RAMPLINE), *arguments], environment_with(home, prefect)
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=280)

    return call


def as_terminal_job() -> None:
    """A shell's background job ignores Ctrl-C, and so does all that it starts: the tests may be such a job."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def command(home: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`command("run", "digits")` starts the command in a process group of its own, with one pipe for all it prints."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, prefect: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
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
