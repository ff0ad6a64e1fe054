"""`prefect.yaml` deployed on the session's Prefect server, as a person does it by hand."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect_rest import PrefectApi
from prefect_server_fixture import Server

from rampline.devices import find_devices
from rampline.servers.automations import apply_automations
from rampline.servers.deployments import add_schedules, ensure_device_limit, ensure_pool

ROOT = Path(__file__).parents[2]


def prefect(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The `prefect` program, in the folder of prefect.yaml, talking to `server`."""
    command = [str(Path(sys.executable).with_name("prefect")), *arguments]
    # As wide as a reason is long, so that it is on one line.
    environment = os.environ | server.prefect | {"COLUMNS": "400"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)


def find_deployments(api: PrefectApi) -> dict[str, dict[str, Any]]:
    """All deployments as they are now, by name."""
    return {found["name"]: found for found in api.post("/deployments/filter")}


@pytest.fixture(scope="session")
def api(server: Server) -> PrefectApi:
    return PrefectApi(url=server.url)


@pytest.fixture(scope="session")
def deployments(server: Server, api: PrefectApi) -> dict[str, dict[str, Any]]:
    """The deployments by name, as the first `prefect deploy --all` made them: that takes 10 s."""
    with client_of(api) as client:
        ensure_pool(client)
        result = prefect(server, "deploy", "--all")
        assert result.returncode == 0, result.stdout + result.stderr
        add_schedules(client)
    return find_deployments(api)


def client_of(api: PrefectApi) -> SyncPrefectClient:
    """Prefect's own client of a server without a password."""
    return SyncPrefectClient(api.url)


def apply(api: PrefectApi, *, cpu_slots: int | None = None) -> list[str]:
    """Automations and the limit of the devices, as `rampline up` makes them after `prefect deploy`."""
    with client_of(api) as client:
        made = apply_automations(client)
        return ensure_device_limit(client, cpu_slots=cpu_slots) + made


def remove_what_was_applied(api: PrefectApi) -> None:
    """Automations and what they need, and the limit of the devices: the session's server is shared by all files."""
    for automation in api.post("/automations/filter"):
        api.request("DELETE", f"/automations/{automation['id']}")
    for limit in api.post("/v2/concurrency_limits/filter"):
        if limit["name"] == find_devices().slots:
            api.request("DELETE", f"/v2/concurrency_limits/{limit['id']}")
    for block in api.post("/block_documents/filter"):
        api.request("DELETE", f"/block_documents/{block['id']}")


@pytest.fixture
def nothing_applied(api: PrefectApi) -> Iterator[None]:
    """Before the test and after it."""
    remove_what_was_applied(api)
    yield
    remove_what_was_applied(api)
