"""The one `rampline up` of the test run, the browser, and the process that all their tests run in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from flow_runs import Flows
from prefect_rest import PrefectApi
from ray_node import make_address

from rampline.devices import find_devices
from rampline.servers.secret import client_login

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from prefect.client.orchestration import SyncPrefectClient

ROOT = Path(__file__).parents[2]
# By what a test asks for, the first of these that it does; one group is a chain of tests, and the longest one counts.
SHARED = {
    "running_slurm": "slurm",
    "stack": "stack",
    "trained": "trained",
    "browser": "browser",
    "prefect_server": "prefect",
    "run_roles": "roles",
    "s3": "s3",
}
# Groups and files of more than 100 s, the longest first: what begins last is what the other processes wait for.
LONGEST = ["prefect", "stack", "roles", "test_wheel", "test_parity_check", "test_supervisor", "test_demo"]
LONGEST += ["test_postgresql", "trained", "test_ray_job", "test_kubernetes", "test_process", "test_check"]
# These kill the servers.
LAST = "test_up.py"
# What ends the servers of a group.
AT_THE_END: dict[str, ExitStack] = {}


def ends_with(group: str) -> ExitStack:
    """What is entered there ends with the tests of the group, and at the latest with the test run."""
    return AT_THE_END.setdefault(group, ExitStack())


# Before xdist's, which reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`, tests with something shared run in one process; of the others a file stays whole."""
    for item in items:
        names: Sequence[str] = getattr(item, "fixturenames", ())
        groups = [group for name, group in SHARED.items() if name in names]
        item.add_marker(pytest.mark.xdist_group(groups[0] if groups else item.path.stem))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[int, bool]:
    """Where the item comes in the order of the test run."""
    group = _group(item)
    return LONGEST.index(group) if group in LONGEST else len(LONGEST), item.path.name == LAST


def _group(item: pytest.Item) -> str:
    return next(marker.args[0] for marker in item.iter_markers("xdist_group"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The servers of a group end with its last test: an idle Prefect server takes a twentieth of a core."""
    group = _group(item)
    if item.nodeid.endswith(f"@{group}"):  # its tests come one after the other
        for other in {*AT_THE_END} - {group}:
            AT_THE_END.pop(other).close()


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flows]:
    """Both servers, the deployments and a worker, in a home of their own; started with the first test that asks.

    Flow runs with `launcher=ray` look for a cluster that a test has to start (`ray_node.py`).
    """
    stack = Flows(tmp_path_factory.mktemp("stack"), make_address())
    with ends_with("stack") as end:
        end.callback(stack.stop)
        stack.up()
        yield stack


# No longer than its tests: while Playwright is there, an event loop runs in this thread, and nobody else can start one.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium for all pages; a test is skipped where there is none."""
    from browser import start_browser  # every test session loads this file

    with start_browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def api(stack: Flows) -> PrefectApi:
    return stack.api


@pytest.fixture
def mlflow_login(stack: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    """For MLflow clients of the test itself."""
    for name, value in client_login(stack.home, ["mlflow"]).items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def deployments(stack: Flows) -> dict[str, dict[str, Any]]:
    """The deployments by name, as `rampline up` has made them."""
    return find_deployments(stack.api)


def find_deployments(api: PrefectApi) -> dict[str, dict[str, Any]]:
    """All deployments as they are now, by name."""
    return {found["name"]: found for found in api.post("/deployments/filter")}


def prefect(stack: Flows, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The `prefect` program, in the folder of prefect.yaml, talking to the stack."""
    command = [str(Path(sys.executable).with_name("prefect")), *arguments]
    # As wide as a reason is long, so that it is on one line.
    environment = os.environ | stack.prefect | {"COLUMNS": "400"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)


def client_of(api: PrefectApi) -> SyncPrefectClient:
    """Prefect's own client of the stack."""
    from prefect.client.orchestration import SyncPrefectClient  # every test session loads this file: seconds

    return SyncPrefectClient(api.url, auth_string=api.auth)


def apply(api: PrefectApi, *, cpu_slots: int | None = None, is_ours: bool = False) -> list[str]:
    """Automations and the limit of the devices, as `rampline up` makes them after `prefect deploy`."""
    from rampline.servers.automations import apply_automations  # Prefect: seconds
    from rampline.servers.deployments import ensure_device_limit

    with client_of(api) as client:
        made = apply_automations(client)
        return ensure_device_limit(client, cpu_slots=cpu_slots, is_ours=is_ours) + made


def remove_what_was_applied(api: PrefectApi) -> None:
    """Automations and what they need, and the limit of the devices."""
    for automation in api.post("/automations/filter"):
        api.request("DELETE", f"/automations/{automation['id']}")
    for limit in api.post("/v2/concurrency_limits/filter"):
        if limit["name"] == find_devices().slots:
            api.request("DELETE", f"/v2/concurrency_limits/{limit['id']}")
    for block in api.post("/block_documents/filter"):
        api.request("DELETE", f"/block_documents/{block['id']}")


@contextmanager
def nothing_of_ours(api: PrefectApi) -> Iterator[None]:
    """In the block what `rampline up` has applied is gone; afterwards all is again as it makes it."""
    remove_what_was_applied(api)
    try:
        yield
    finally:
        remove_what_was_applied(api)
        apply(api)


@pytest.fixture
def nothing_applied(api: PrefectApi) -> Iterator[None]:
    with nothing_of_ours(api):
        yield
