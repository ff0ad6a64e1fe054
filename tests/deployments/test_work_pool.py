"""The base job template of the Kubernetes work pool, with a real Prefect server: no cluster, no prefect-kubernetes."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from deployment_files import DEPLOYMENTS, manifests, without_secrets
from own_prefect import own_prefect
from prefect.utilities.templating import apply_values

TEMPLATE = DEPLOYMENTS / "kubernetes" / "base-job-template.json"
# What a Kubernetes worker puts in.
OF_A_FLOW_RUN = {"name": "study", "labels": {}}
# It refuses a template that has these elsewhere; Kubernetes' server drops them from a pod.
OF_THE_WORKER = {"parallelism": 1, "completions": 1}


def job(**variables: Any) -> dict[str, Any]:
    """The Job of a flow run whose deployment has these job variables."""
    template = json.loads(TEMPLATE.read_text())
    properties = template["variables"]["properties"]
    assert set(variables) <= set(properties)
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    manifest = apply_values(template["job_configuration"], defaults | OF_A_FLOW_RUN | variables, remove_notset=True)
    pod = manifest["job_manifest"]["spec"]["template"]["spec"]
    assert {key: pod.pop(key) for key in OF_THE_WORKER} == OF_THE_WORKER
    return manifest["job_manifest"]


def test_jobs_made_from_it_fit_the_schema():
    for item in (job(), job(gpus=2, memory_limit="32Gi", image_pull_policy="Always")):
        for version in ("1.31", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(item, version, strict=True)


def test_a_flow_run_has_the_same_safeguards_as_a_training_job():
    pod = job(gpus=1)["spec"]["template"]["spec"]
    other = next(item for item in manifests()["training-job.yaml"] if item["kind"] == "Job")["spec"]["template"]["spec"]
    for key in ("securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert pod[key] == other[key]
    assert pod["containers"][0]["securityContext"] == other["containers"][0]["securityContext"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_pool_takes_the_environment_of_prefect_yaml_and_no_other():
    process = json.loads((DEPLOYMENTS / "process-job-template.json").read_text())["variables"]
    variables = json.loads(TEMPLATE.read_text())["variables"]
    for key in ("properties", "additionalProperties"):
        assert variables["properties"]["env"][key] == process["properties"]["env"][key]
    assert variables["additionalProperties"] is False
    # Pods have it from the template: whoever starts a flow run chooses no value either.
    given = yaml.safe_load((DEPLOYMENTS.parent / "prefect.yaml").read_text())["definitions"]["work_pool"]
    env = json.loads(TEMPLATE.read_text())["job_configuration"]["env"]
    assert given["job_variables"]["env"].items() <= env.items()
    assert "{{" not in str(env)


@pytest.mark.long
def test_deploy_script_with_a_kubernetes_pool(tmp_path):
    # Another server than that of the other tests, which has a process pool of the same name.
    with own_prefect(tmp_path) as (_, variables):
        deploy_and_look(variables)


def deploy_and_look(variables: dict[str, str]) -> None:
    url = variables["PREFECT_API_URL"]
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    environment = without_secrets() | variables | path
    command = [str(DEPLOYMENTS / "deploy.sh"), "kubernetes", str(TEMPLATE.relative_to(DEPLOYMENTS.parent))]
    for _ in range(2):  # the second time changes what is there
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with urllib.request.urlopen(f"{url}/work_pools/rampline", timeout=30) as answer:
        pool = json.load(answer)
    assert pool["type"] == "kubernetes"
    assert pool["base_job_template"] == json.loads(TEMPLATE.read_text())
    deployments, automations = (post(f"{url}/{kind}/filter", {}) for kind in ("deployments", "automations"))
    assert [found["name"] for found in automations].count("rampline: zombie flow runs") == 1
    names = {
        entry["name"] for entry in yaml.safe_load((DEPLOYMENTS.parent / "prefect.yaml").read_text())["deployments"]
    }
    assert {found["name"] for found in deployments} == names
    assert {found["work_pool_name"] for found in deployments} == {"rampline"}
    # Their folder is the one that deploy.sh lies in: the image's, in the image.
    folder = {"prefect.deployments.steps.set_working_directory": {"directory": str(DEPLOYMENTS.parent)}}
    assert all(found["pull_steps"] == [folder] for found in deployments)
    [study] = [found["id"] for found in deployments if found["name"] == "study"]

    start = f"{url}/deployments/{study}/create_flow_run"
    assert post(start, {"job_variables": {"gpus": 1, "env": {"PYTHONSAFEPATH": "1"}}})["id"]
    for chosen in ({"command": "id"}, {"env": {"LD_PRELOAD": "x"}}, {"image": "x"}, {"secret": "x"}):
        with pytest.raises(urllib.error.HTTPError, match="422"):
            post(start, {"job_variables": chosen})


def post(url: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)
