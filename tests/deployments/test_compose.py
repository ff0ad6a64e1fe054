"""compose.yaml, as far as it goes without a container engine; tests/flows/test_postgresql.py runs its commands."""

import json

import pytest
import yaml
from deployment_files import DEPLOYMENTS, compose, compose_variables, example_environment
from team_servers import SECRETS

from rampline.servers.processes import FLOW_RUNS_SECONDS, SERVERS_SECONDS, WATCHDOGS_SECONDS

# What the Compose specification allows, as far as the file may use it.
TOP = {"name", "services", "volumes", "configs"}
SERVICE = {
    *("image", "build", "init", "cap_drop", "security_opt", "restart", "entrypoint", "command", "environment"),
    *("hostname", "volumes", "configs", "ports", "healthcheck", "depends_on", "stop_grace_period", "shm_size"),
}
CONDITIONS = {"service_healthy", "service_completed_successfully"}


@pytest.fixture(scope="module")
def content() -> dict:
    return compose(example_environment() | SECRETS)


def test_every_key_is_of_the_specification(content):
    assert {key for key in content if not key.startswith("x-")} <= TOP
    for name, service in content["services"].items():
        assert set(service) <= SERVICE, name
        assert set(service.get("healthcheck", {})) <= {"test", "interval", "timeout", "retries", "start_period"}


def test_example_environment_has_every_variable_and_no_secret():
    example = example_environment()
    assert set(example) == compose_variables()
    assert {name for name, value in example.items() if not value} == {*SECRETS, "RAMPLINE_NOTIFY_URL"}


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_starts_without_its_secrets(secret):
    with pytest.raises(ValueError, match=f"{secret}: set it in deployments/.env"):
        compose(example_environment() | SECRETS | {secret: ""})


def test_what_is_referred_to_is_there(content):
    services = content["services"]
    for name, service in services.items():
        for other, condition in service.get("depends_on", {}).items():
            assert condition["condition"] in CONDITIONS
            if condition["condition"] == "service_healthy":
                assert "healthcheck" in services[other], f"{name}: {other}"
        for entry in service.get("configs", ()):
            assert entry["source"] in content["configs"]
        for entry in service.get("volumes", ()):
            source = entry.split(":")[0]
            assert (DEPLOYMENTS / source).is_file() if source.startswith(".") else source in content["volumes"]
    assert (DEPLOYMENTS / content["x-rampline"]["build"]["context"]).resolve() == DEPLOYMENTS.parent


def test_images_are_pinned_and_ports_are_on_loopback(content):
    for name, service in content["services"].items():
        _, _, tag = service["image"].rpartition(":")
        assert any(digit.isdigit() for digit in tag), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_servers_ask_for_a_password(content):
    prefect, mlflow = (content["services"][name] for name in ("prefect", "mlflow"))
    assert prefect["environment"]["PREFECT_SERVER_API_AUTH_STRING"] == SECRETS["PREFECT_AUTH_STRING"]
    assert "--app-name=basic-auth" in mlflow["command"]
    assert "lease_storage.filesystem" in prefect["environment"]["PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE"]


def test_without_the_names_of_a_proxy_servers_answer_to_their_own(content):
    own = {name: text for name, text in example_environment().items() if "_ALLOWED_" not in name}
    assert compose(own | SECRETS) == content


def test_a_proxy_is_let_in_by_variables_alone():
    names = {
        "PREFECT_ALLOWED_HOSTS": "prefect,prefect.example.org",
        "MLFLOW_ALLOWED_HOSTS": "mlflow:5000,mlflow.example.org",
        "MLFLOW_ALLOWED_ORIGINS": "https://mlflow.example.org",
    }
    services = compose(example_environment() | SECRETS | names)["services"]
    assert services["prefect"]["environment"]["RAMPLINE_ALLOWED_HOSTS"] == names["PREFECT_ALLOWED_HOSTS"]
    assert f"--allowed-hosts={names['MLFLOW_ALLOWED_HOSTS']}" in services["mlflow"]["command"]
    assert f"--cors-allowed-origins={names['MLFLOW_ALLOWED_ORIGINS']}" in services["mlflow"]["command"]


def test_prefect_is_started_without_its_faults_and_behind_the_gate(content):
    assert content["services"]["prefect"]["entrypoint"] == ["python", "-m", "rampline.servers.prefect_server"]


def test_the_worker_is_started_so_that_its_flow_runs_save(content):
    worker = content["services"]["worker"]
    assert worker["hostname"] == "rampline-worker"
    assert worker["entrypoint"] == ["python", "-m", "rampline.servers.compose_worker"]
    seconds = FLOW_RUNS_SECONDS + WATCHDOGS_SECONDS + SERVERS_SECONDS
    assert seconds < float(worker["stop_grace_period"].removesuffix("s"))


def test_the_process_pool_takes_what_prefect_yaml_gives_and_nothing_else():
    variables = json.loads((DEPLOYMENTS / "process-job-template.json").read_text())["variables"]
    given = yaml.safe_load((DEPLOYMENTS.parent / "prefect.yaml").read_text())["definitions"]["work_pool"][
        "job_variables"
    ]
    assert set(variables["properties"]) == set(given)
    assert set(variables["properties"]["env"]["properties"]) == set(given["env"])
    assert variables["additionalProperties"] is variables["properties"]["env"]["additionalProperties"] is False
