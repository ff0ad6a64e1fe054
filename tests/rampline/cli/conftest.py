"""The installed command, run as a user runs it: a process with a home and a working folder of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RAMPLINE = Path(sys.executable).with_name("rampline")
UNSET = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "TF_CONFIG", "CUDA_VISIBLE_DEVICES")

Rampline = Callable[..., subprocess.CompletedProcess[str]]


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
def command(home: Path, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`command("run", "digits")` starts the command in a process group of its own, with one pipe for all it prints."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, prefect: dict[str, str] | None = None) -> subprocess.Popen[str]:
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        place = {"cwd": tmp_path, "env": environment_with(home, prefect), "start_new_session": True}
        started.append(subprocess.Popen([str(RAMPLINE), *arguments], **output, **place))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
