"""The deployments of a running server: what its UI makes forms of, and what it refuses."""

import subprocess
from typing import Any

import pytest
from prefect_rest import PrefectApi, PrefectError
from stack import client_of, find_deployments, prefect

from rampline.servers.deployments import add_schedules

NAMES = ["baseline", "cluster", "evaluate", "finetune", "predict", "prepare", "study"]
TIMES = {
    "study": {"nightly": "0 2 * * *", "weekly-sweep": "0 3 * * 0"},
    "predict": {"daily": "0 6 * * *"},
}

pytestmark = pytest.mark.slow


def fields_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return deployment["parameter_openapi_schema"]["properties"]


def schedules_of(api: PrefectApi, name: str) -> dict[str | None, dict[str, Any]]:
    return {schedule["slug"]: schedule for schedule in find_deployments(api)[name]["schedules"]}


def test_a_deployment_per_flow_in_the_process_pool(deployments):
    assert sorted(deployments) == NAMES
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout
    for name, deployment in deployments.items():
        assert deployment["entrypoint"] == f"rampline.flows.{name}.{name}"
        assert deployment["work_pool_name"] == "rampline"
        assert "rampline" in deployment["tags"]
        assert "- **study**" in deployment["description"]
        assert deployment["version"] == commit[:12]
        assert deployment["enforce_parameter_schema"] is True
        # Else the form shows the defaults of the flow.
        assert deployment["parameters"] == ({"study": "digits"} if name == "study" else {})
        # Signs of life, whoever started the worker.
        assert deployment["job_variables"]["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"


def test_flow_runs_beyond_the_limit_wait_and_predictions_are_left_out(deployments):
    limits = {
        name: (deployment["global_concurrency_limit"]["limit"], deployment["concurrency_options"]["collision_strategy"])
        for name, deployment in deployments.items()
    }
    four = dict.fromkeys(["baseline", "cluster", "evaluate", "finetune", "study"], (4, "ENQUEUE"))
    assert limits == four | {"prepare": (1, "ENQUEUE"), "predict": (1, "CANCEL_NEW")}


def test_every_parameter_has_a_help_text_and_a_default(deployments):
    for name, deployment in deployments.items():
        assert not deployment["parameter_openapi_schema"].get("required"), name
        for parameter, field in fields_of(deployment).items():
            assert field.get("description"), f"{name}.{parameter}"
            assert "default" in field, f"{name}.{parameter}"


def test_schedules_are_there_and_switched_off(deployments):
    for name, deployment in deployments.items():
        times = {schedule["slug"]: schedule["schedule"]["cron"] for schedule in deployment["schedules"]}
        assert times == TIMES.get(name, {})
        assert not any(schedule["active"] for schedule in deployment["schedules"])
    sweep = next(each for each in deployments["study"]["schedules"] if each["slug"] == "weekly-sweep")
    assert sweep["parameters"] == {"study": "inaturalist"}


@pytest.mark.long
def test_deploying_again_keeps_what_was_switched_on_changed_and_added(stack, api):
    study = find_deployments(api)["study"]
    nightly = schedules_of(api, "study")["nightly"]
    before = {key: nightly[key] for key in ("active", "schedule", "parameters")}
    route = f"/deployments/{study['id']}/schedules"
    mine = {"active": True, "schedule": {"cron": "0 5 * * *", "timezone": "UTC"}, "parameters": {"study": "mnist"}}
    api.request("PATCH", f"{route}/{nightly['id']}", mine)
    # As the UI adds one: without a slug.
    yearly = {"interval": 31536000, "anchor_date": "2040-01-01T00:00:00Z"}
    [added] = api.post(route, [{"active": True, "schedule": yearly, "parameters": {"epochs": 1}}])
    try:
        assert prefect(stack, "deploy", "--name", "study").returncode == 0
        with client_of(api) as client:
            add_schedules(client)
        kept = schedules_of(api, "study")
        assert {key: kept["nightly"][key] for key in ("active", "parameters")} == {
            "active": True,
            "parameters": {"study": "mnist"},
        }
        assert kept["nightly"]["schedule"]["cron"] == "0 5 * * *"
        assert kept["weekly-sweep"]["active"] is False
        again = kept[None]
        assert again["id"] == added["id"]
        assert (again["active"], again["parameters"]) == (True, {"epochs": 1})
    finally:
        api.request("DELETE", f"{route}/{added['id']}")
        api.request("PATCH", f"{route}/{nightly['id']}", before)


@pytest.mark.parametrize(
    ("deployment", "parameter", "value", "reason"),
    [
        ("study", "epochs", 0, "0 is less than the minimum of 1"),
        ("study", "strategy", "nonsense", "'nonsense' is not one of ['all', 'single', 'mirrored', 'multi_worker'"),
    ],
)
def test_a_bad_value_is_refused_with_the_reason_before_anything_starts(
    api, deployments, deployment, parameter, value, reason
):
    before = api.post("/flow_runs/count")
    with pytest.raises(PrefectError) as refusal:
        api.post(f"/deployments/{deployments[deployment]['id']}/create_flow_run", {"parameters": {parameter: value}})
    assert " 409 " in str(refusal.value)
    assert reason in str(refusal.value)
    assert api.post("/flow_runs/count") == before
