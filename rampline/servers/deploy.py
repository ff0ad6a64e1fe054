"""Deployments: `prefect.yaml` of this checkout, applied with the `prefect` program."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import rampline
from rampline.errors import InputError, RamplineError
from rampline.home import Home
from rampline.servers.processes import start
from rampline.servers.state import servers_folder

DEPLOY_SECONDS = 300


def project_folder() -> Path:
    """The folder with `prefect.yaml`, in which flow runs work.

    Raises:
        InputError: where the package is installed without it.
    """
    folder = Path(rampline.__file__).parents[1]
    if not (folder / "prefect.yaml").is_file():
        raise InputError(
            f"there is no prefect.yaml in {folder}: `rampline up` needs Rampline's checkout, not an installed wheel"
        )
    return folder


def version() -> str:
    """The version of the deployments: the short git commit, or `unknown`."""
    # It brings in psutil and others.
    from rampline.tracking.provenance import git_commit

    return git_commit()[:12]


def deploy(home: Home, folder: Path, environment: Mapping[str, str]) -> None:
    """Apply `prefect.yaml`; the work pool must be there.

    Args:
        home: whose servers these are.
        folder: where `prefect.yaml` is.
        environment: leads to the Prefect server.

    Raises:
        RamplineError: when Prefect refuses: naming the log.
    """
    log = servers_folder(home) / "deploy.log"
    log.unlink(missing_ok=True)
    command = ["-m", "prefect", "--no-prompt", "deploy", "--all"]
    process = start(command, part="deploy", home=home, environment=environment, folder=folder, log=log)
    try:
        status = process.wait(DEPLOY_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status:
        raise RamplineError(f"prefect.yaml of {folder} could not be deployed (exit status {status}): see {log}")
