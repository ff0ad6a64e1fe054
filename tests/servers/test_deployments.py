"""What is made on a real Prefect server, and that the user's changes to it stay."""

from pathlib import Path
from typing import Any

import pytest
from command_line import wait_until
from prefect_rest import PrefectApi
from stack import apply, client_of
from webhook import receive_webhooks

from rampline.devices import find_devices
from rampline.errors import ConfigError
from rampline.record.home import Home
from rampline.servers.deployments import ensure_pool

SLOTS = find_devices().slots
FAILED = "rampline: notify of failed and crashed flow runs"
OVERRUN = "rampline: notify of overrunning flow runs"
ZOMBIE = "rampline: zombie flow runs"
NEW_DATA = "rampline: train after new data"
# What the API takes of an automation.
AUTOMATION = (
    "name",
    "description",
    "enabled",
    "tags",
    "trigger",
    "actions",
    "actions_on_trigger",
    "actions_on_resolve",
)
SECRET = "/services/T000/secret-part"

pytestmark = pytest.mark.usefixtures("nothing_applied")


def automations(api: PrefectApi) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in api.post("/automations/filter")}


def limits(api: PrefectApi) -> dict[str, int]:
    return {each["name"]: each["limit"] for each in api.post("/v2/concurrency_limits/filter")}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ("RAMPLINE_NOTIFY_URL", "RAMPLINE_OVERRUN_HOURS"):
        monkeypatch.delenv(name, raising=False)
    return Home(root=tmp_path)


@pytest.fixture
def deployment(deployments: dict[str, dict[str, Any]]) -> str:
    """Id of the deployment `study/study`."""
    return deployments["study"]["id"]


def test_the_pool_is_made_once_and_one_that_lets_callers_choose_the_command_is_locked(api):
    with client_of(api) as client:
        assert ensure_pool(client) == []
    pool = api.request("GET", "/work_pools/rampline")
    assert pool["type"] == "process"
    assert "env" in pool["base_job_template"]["variables"]["properties"]
    default = api.request("GET", "/collections/views/aggregate-worker-metadata")["prefect"]["process"]
    template = {"base_job_template": default["default_base_job_configuration"]}
    api.request("PATCH", "/work_pools/rampline", template)
    with client_of(api) as client:
        assert len(ensure_pool(client)) == 1
        assert ensure_pool(client) == []
    assert api.request("GET", "/work_pools/rampline")["base_job_template"] == pool["base_job_template"]


def test_applying_twice_changes_nothing(api, home, deployment):
    lines = apply(api)
    count = find_devices().count
    assert lines[0] == f"made the concurrency limit {SLOTS}, with {count} slot{'s' * (count != 1)} to train on"
    assert lines[1:] == [f"made the automation '{ZOMBIE}'", f"made the automation '{NEW_DATA}', switched off"]
    assert limits(api)[SLOTS] == find_devices().count
    before = automations(api)
    assert {name: each["enabled"] for name, each in before.items()} == {ZOMBIE: True, NEW_DATA: False}
    assert before[ZOMBIE]["trigger"]["within"] == 100
    assert before[NEW_DATA]["actions"][0]["deployment_id"] == deployment
    assert apply(api) == []
    assert automations(api) == before


@pytest.mark.skipif(SLOTS == "gpu", reason="the slots of a machine with GPUs are its GPUs")
def test_the_size_of_the_limit_is_the_users(api, home):
    apply(api)
    api.request("PATCH", f"/v2/concurrency_limits/{SLOTS}", {"limit": 3})
    assert apply(api) == []
    assert limits(api)[SLOTS] == 3
    assert apply(api, cpu_slots=2) == [f"changed the concurrency limit {SLOTS} from 3 to 2 slots"]
    assert limits(api)[SLOTS] == 2


def test_slots_that_a_killed_command_has_left_taken_are_freed_while_no_flow_run_is_in_progress(api, home):
    running = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}}}
    wait_until(lambda: not api.post("/flow_runs/filter", running), 120)
    apply(api)
    limit = f"/v2/concurrency_limits/{SLOTS}"
    api.request("PATCH", limit, {"active_slots": 1})
    flow = api.post("/flows/", {"name": "trains"})["id"]
    flow_run = api.post("/flow_runs/", {"flow_id": flow, "state": {"type": "RUNNING"}})["id"]
    assert apply(api, is_ours=True) == []
    api.request("DELETE", f"/flow_runs/{flow_run}")
    assert apply(api) == []
    assert api.request("GET", limit)["active_slots"] == 1
    assert apply(api, is_ours=True) == [f"freed 1 slot of the concurrency limit {SLOTS}: no flow run is in progress"]
    assert api.request("GET", limit)["active_slots"] == 0


def test_what_was_switched_off_stays_off_and_what_points_to_nothing_is_mended(api, home, deployment):
    apply(api)
    before = automations(api)
    api.request("PATCH", f"/automations/{before[ZOMBIE]['id']}", {"enabled": False})
    api.request("PATCH", f"/automations/{before[NEW_DATA]['id']}", {"enabled": True})
    assert apply(api) == []

    point_to_nothing(api, automations(api)[NEW_DATA])
    [line] = apply(api)
    assert line == f"changed the automation '{NEW_DATA}': it pointed to what is gone"
    after = automations(api)
    assert after[NEW_DATA]["actions"][0]["deployment_id"] == deployment
    assert (after[ZOMBIE]["enabled"], after[NEW_DATA]["enabled"]) == (False, True)


def point_to_nothing(api: PrefectApi, automation: dict[str, Any]) -> None:
    """Have it run a deployment that is deleted then."""
    flow = api.post("/flows/", {"name": "gone"})["id"]
    gone = api.post("/deployments/", {"name": "gone", "flow_id": flow})["id"]
    body = {field: automation[field] for field in AUTOMATION}
    [action] = body["actions"]
    api.request("PUT", f"/automations/{automation['id']}", body | {"actions": [action | {"deployment_id": gone}]})
    api.request("DELETE", f"/deployments/{gone}")


def test_the_address_of_notifications_is_a_secret(api, home, monkeypatch):
    with receive_webhooks() as receiver:
        monkeypatch.setenv("RAMPLINE_NOTIFY_URL", receiver.url + SECRET)
        lines = apply(api)
    assert (
        "made the notification block custom-webhook/rampline-notify, with the address in RAMPLINE_NOTIFY_URL" in lines
    )
    assert {FAILED, OVERRUN} < set(automations(api))
    assert automations(api)[OVERRUN]["trigger"]["within"] == 24 * 3600
    shown = [*lines, str(api.post("/block_documents/filter")), str(automations(api))]
    assert not [text for text in shown if "secret-part" in text]
    assert apply(api) == []

    monkeypatch.setenv("RAMPLINE_NOTIFY_URL", "https://hooks.example/other")
    monkeypatch.setenv("RAMPLINE_OVERRUN_HOURS", "2")
    assert apply(api) == [
        "gave the notification block custom-webhook/rampline-notify the new address in RAMPLINE_NOTIFY_URL",
        f"changed the automation '{OVERRUN}': after 7200 s",
    ]
    [block] = api.post("/block_documents/filter", {"include_secrets": True})
    assert block["data"]["secrets"]["address"] == "https://hooks.example/other"


@pytest.mark.parametrize(
    ("url", "hours", "message"),
    [
        (
            "hooks.example/secret-part",
            "24",
            "RAMPLINE_NOTIFY_URL must be an address that begins with http:// or https://",
        ),
        ("http://hooks.example", "soon", "RAMPLINE_OVERRUN_HOURS=soon must be a number of hours, such as 24"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_before_anything_is_made(api, home, monkeypatch, url, hours, message):
    monkeypatch.setenv("RAMPLINE_NOTIFY_URL", url)
    monkeypatch.setenv("RAMPLINE_OVERRUN_HOURS", hours)
    with pytest.raises(ConfigError) as refusal:
        apply(api)
    assert str(refusal.value) == message
    assert automations(api) == {}
    assert SLOTS not in limits(api)
