"""The base job template of the Kubernetes work pool, with a real Prefect server: no cluster, no prefect-kubernetes."""

import json
import os
import subprocess
import sys
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
OF_A_FLOW_RUN = {"command": ["prefect", "flow-run", "execute"], "env": [{"name": "A", "value": "1"}], "labels": {}}


def job(**variables: Any) -> dict[str, Any]:
    """The Job of a flow run whose deployment has these job variables."""
    template = json.loads(TEMPLATE.read_text())
    properties = template["variables"]["properties"]
    assert set(variables) <= set(properties)
    defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
    values = defaults | {"name": "study", **OF_A_FLOW_RUN} | variables
    return apply_values(template["job_configuration"], values, remove_notset=True)["job_manifest"]


def test_jobs_made_from_it_fit_the_schema():
    for item in (job(), job(gpus=2, namespace="team", service_account_name="trainer", image="registry/rampline:1")):
        for version in ("1.31", kubernetes_validate.latest_version()):
            kubernetes_validate.validate(item, version, strict=True)


def test_a_flow_run_has_the_same_safeguards_as_a_training_job():
    pod = job(gpus=1)["spec"]["template"]["spec"]
    other = next(item for item in manifests()["training-job.yaml"] if item["kind"] == "Job")["spec"]["template"]["spec"]
    for key in ("securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert pod[key] == other[key]
    assert pod["containers"][0]["securityContext"] == other["containers"][0]["securityContext"]
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1


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
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/deployments/filter", b"{}", headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        deployments = json.load(answer)
    names = {
        entry["name"] for entry in yaml.safe_load((DEPLOYMENTS.parent / "prefect.yaml").read_text())["deployments"]
    }
    assert {found["name"] for found in deployments} == names
    assert {found["work_pool_name"] for found in deployments} == {"rampline"}
    # Their folder is the one that deploy.sh lies in: the image's, in the image.
    folder = {"prefect.deployments.steps.set_working_directory": {"directory": str(DEPLOYMENTS.parent)}}
    assert all(found["pull_steps"] == [folder] for found in deployments)
