"""Deployments: `prefect.yaml`, applied with the `prefect` program."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from importlib.metadata import version as version_of
from pathlib import Path

from rampline.errors import RamplineError
from rampline.record.home import Home
from rampline.servers.processes import start
from rampline.servers.running import servers_folder

DEPLOY_SECONDS = 300
COMMIT_DIGITS = 12
PACKAGE = Path(__file__).parents[1]
# In a checkout the package has a link to it.
PREFECT_YAML = (PACKAGE / "prefect.yaml").resolve()


def work_folder() -> Path:
    """Where flow runs work: in the checkout; those of an installed wheel in the current folder."""
    checkout = PACKAGE.parent
    return checkout if (checkout / PREFECT_YAML.name).is_file() else Path.cwd()


def version() -> str:
    """The version of the deployments: the commit, 12 digits; where that is not known, the version of the package."""
    # It brings in psutil and others.
    from rampline.record.provenance import UNKNOWN, git_commit

    commit = git_commit()
    return version_of("rampline") if commit == UNKNOWN else commit[:COMMIT_DIGITS]


def deploy(home: Home, folder: Path, environment: Mapping[str, str]) -> None:
    """Apply `prefect.yaml`; the work pool must be there.

    Args:
        home: whose servers these are.
        folder: which the deployments remember; their flow runs work in it.
        environment: leads to the Prefect server.

    Raises:
        RamplineError: when Prefect refuses: naming the log.
    """
    log = servers_folder(home) / "deploy.log"
    log.unlink(missing_ok=True)
    command = ["-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(PREFECT_YAML)]
    process = start(command, part="deploy", home=home, environment=environment, folder=folder, log=log)
    try:
        status = process.wait(DEPLOY_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    if status:
        raise RamplineError(f"{PREFECT_YAML} could not be deployed (exit status {status}): see {log}")
