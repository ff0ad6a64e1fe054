"""A Prefect server as somebody has it who knows nothing of `rampline up`: one of a test, and one for all commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import wait_until
from prefect_rest import PrefectApi
from stack import ends_with

from rampline.devices import free_ports
from rampline.servers.running import answers

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

START_SECONDS = 120


@contextmanager
def own_prefect(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """Its process, and the variables that lead a command to it."""
    from rampline.servers.prefect_tables import make_tables  # every test session loads this file

    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}/api"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    (folder / "prefect").mkdir()
    make_tables(f"sqlite+aiosqlite:///{folder}/prefect/prefect.db")
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with open(folder / "prefect.log", "w") as log:
        process = subprocess.Popen(command, env=kept | own, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: answers(f"{url}/health"), START_SECONDS)
        yield process, own | {"PREFECT_API_URL": url}
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, kw_only=True)
class PrefectServer:
    """Its API, and the variables that lead a command to it."""

    api: PrefectApi
    prefect: dict[str, str]


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """For commands that need no more of `rampline up` than that: their tests run beside those of the stack."""
    with ends_with("prefect") as end:
        _, variables = end.enter_context(own_prefect(tmp_path_factory.mktemp("prefect")))
        yield PrefectServer(api=PrefectApi(url=variables["PREFECT_API_URL"]), prefect=variables)


def deployed_flow_run(api: PrefectApi, flow: str, **fields: object) -> FlowRun:
    """A new flow run of a deployment of that name, which has no worker: for `run_flow` in the test itself."""
    from prefect.client.orchestration import get_client  # every test session loads this file: seconds

    flow_id = api.post("/flows/", {"name": flow})["id"]
    deployment = api.post("/deployments/", {"name": flow, "flow_id": flow_id, **fields})["id"]
    flow_run = api.post(f"/deployments/{deployment}/create_flow_run")["id"]
    with get_client(sync_client=True) as client:
        return client.read_flow_run(flow_run)
