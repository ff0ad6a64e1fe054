"""Where to look at an execution in MLflow: the address of its run, and how to open MLflow on it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rampline.credentials import without_user
from rampline.execution_file import read_execution
from rampline.home import Home
from rampline.tracking.address import tracking_uri
from rampline.tracking.pages import artifact_page, experiment_page, model_version_page, run_page
from rampline.tracking.views import LATEST

LOCAL_SERVER = "http://127.0.0.1:5000"


def mlflow_links(execution: Path, home: Home) -> dict[str, str]:
    """Pages of MLflow by what they show: the runs as `charts`, the execution's run (`study`), its `report`.

    On the tracking server, or on the one that `rampline up` starts.
    """
    from rampline.tracking.store import open_tracking  # MLflow: too slow for commands that need no link

    run_id = read_execution(execution).parent_run_id
    experiment = open_tracking(home).get_run(run_id).info.experiment_id
    pages = {
        "charts": experiment_page(experiment, LATEST, charts=True),
        "study": run_page(experiment, run_id),
        "report": artifact_page(experiment, run_id, "report.html"),
    }
    return {shown: f"{_server(home)}/{page}" for shown, page in pages.items()}


def model_version_link(model: str, version: int, home: Home) -> str:
    """The page of a version of a registered model, on the same server."""
    return f"{_server(home)}/{model_version_page(model, version)}"


def how_to_open_mlflow(home: Home) -> str:
    """Where a tracking server is running already, else the command that starts MLflow on the runs, and its address."""
    if _has_server(home):
        return without_user(tracking_uri(home))
    program = shlex.quote(shorten(Path(sys.executable).with_name("rampline")))
    return f"{program} up, then {LOCAL_SERVER}"


def how_to_open_tensorboard(folder: Path) -> str:
    """The one command that shows the scalars of a run and its profile, whose plugin is no part of this installation."""
    return f"uvx --with xprof tensorboard --logdir {shlex.quote(shorten(folder))}"


def shorten(path: Path) -> str:
    """Relative to the current folder where that is shorter."""
    return min(os.path.relpath(path), str(path), key=len)


def _server(home: Home) -> str:
    return without_user(tracking_uri(home)).rstrip("/") if _has_server(home) else LOCAL_SERVER


def _has_server(home: Home) -> bool:
    return tracking_uri(home).startswith("http")
