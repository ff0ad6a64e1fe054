"""The Kubernetes manifests: against the schemas of Kubernetes, and the Job's own commands as plain processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from command_line import read_until
from deployment_files import DEPLOYMENTS, manifests, pod_environment, training_job, without_secrets

from rampline.jobs.exit_status import STOPPED, WRONG_INPUT
from rampline.jobs.roles import free_ports
from rampline.study.content import load_study


def _templates(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the pods that an object makes."""
    spec = item["spec"]
    if item["kind"] == "Job":
        return [spec["template"]]
    if item["kind"] != "RayJob":
        return []
    cluster = spec["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [spec["submitterPodTemplate"], *(group["template"] for group in groups)]


ITEMS = [(file, item) for file, found in manifests().items() for item in found]
PODS = [template["spec"] for _, item in ITEMS for template in _templates(item)]
# Those that Kubernetes itself knows, and the pods of the others.
OBJECTS = [pytest.param(item, id=f"{file}-{item['kind']}") for file, item in ITEMS if item["kind"] != "RayJob"]
OBJECTS += [
    pytest.param(
        {"apiVersion": "v1", "kind": "Pod", **template}, id=f"{file}-{template['spec']['containers'][0]['name']}"
    )
    for file, item in ITEMS
    if item["kind"] == "RayJob"
    for template in _templates(item)
]
# The oldest in which all that is used is stable (podFailurePolicy: 1.31), and the newest that the package knows.
VERSIONS = ("1.31", kubernetes_validate.latest_version())
IMAGE_FOLDER = "/opt/rampline"


@pytest.mark.parametrize("item", OBJECTS)
def test_objects_fit_the_schemas(item):
    for kubernetes in VERSIONS:
        kubernetes_validate.validate(item, kubernetes, strict=True)


def test_schemas_find_a_mistake():
    job = training_job()
    job["spec"]["completionmode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


@pytest.mark.parametrize("pod", PODS)
def test_pods_are_not_root_and_have_no_account(pod):
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        name, _, tag = container["image"].partition(":")
        assert name == "rampline"
        assert tag not in ("", "latest")
        for script in container.get("command", [])[-1:]:
            assert (DEPLOYMENTS.parent / Path(script).relative_to(IMAGE_FOLDER)).is_file()


def test_number_of_pods_is_the_number_of_roles():
    spec = training_job()["spec"]
    environment = pod_environment(spec["template"]["spec"]["containers"][0], _fields())
    workers, parameter_servers = int(environment["WORKERS"]), int(environment["PARAMETER_SERVERS"])
    assert spec["completions"] == spec["parallelism"] == workers + parameter_servers + bool(parameter_servers)


def test_names_that_must_agree():
    service, policy, job = manifests()["training-job.yaml"]
    pod = job["spec"]["template"]
    environment = pod_environment(pod["spec"]["containers"][0], _fields())
    assert service["metadata"]["name"] == pod["spec"]["subdomain"] == environment["SERVICE"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    # Kubernetes adds job-name.
    labels = pod["metadata"]["labels"] | {"job-name": job["metadata"]["name"]}
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [[peer]] = [rule["from"] for rule in policy["spec"]["ingress"]]
    assert peer == {"podSelector": policy["spec"]["podSelector"]}
    [claim] = manifests()["storage.yaml"]
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}


def test_exit_statuses_are_those_of_the_commands():
    rules = training_job()["spec"]["podFailurePolicy"]["rules"]
    by_code = {tuple(rule["onExitCodes"]["values"]): rule["action"] for rule in rules if "onExitCodes" in rule}
    assert by_code == {(WRONG_INPUT,): "FailJob", (STOPPED,): "Ignore"}


@pytest.fixture
def start_pod(stack, tmp_path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """`start_pod(0)` starts the command of the Job's pod 0 with its environment, loopback in place of names."""
    job, started = training_job(), []
    container = job["spec"]["template"]["spec"]["containers"][0]
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(job["spec"]["completions"]))
    command = [*container["command"], *container["args"], "--set", "epochs=40", "--set", "data.limit=20"]
    command += ["--set", "explain.steps=0"]
    command = [part.replace(IMAGE_FOLDER, str(DEPLOYMENTS.parent)) for part in command]
    pod = pod_environment(container, _fields())
    pod = {name: value.replace("/rampline", f"{tmp_path}/rampline") for name, value in pod.items()}
    own = {"ADDRESSES": addresses, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def start(index: int) -> subprocess.Popen[str]:
        environment = without_secrets() | pod | own | stack.prefect | {"JOB_COMPLETION_INDEX": str(index)}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env=environment, cwd=tmp_path, start_new_session=True, **output))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pods_of_the_job_as_plain_processes(start_pod, tmp_path):
    indexes = range(training_job()["spec"]["completions"])

    def finish(pods: list[subprocess.Popen[str]]) -> tuple[list[int | None], str]:
        # Pod 0 comes first: the others would wait long for one that has failed.
        outputs = [pods[0].communicate()[0]]
        for pod in pods[1:] if pods[0].returncode in (0, STOPPED) else ():
            outputs.append(pod.communicate()[0])
        return [pod.poll() for pod in pods], "\n".join(outputs)

    # Pod 0 last: the others wait for the run directory.
    *others, first = [start_pod(index) for index in reversed(indexes)]
    read_until(first, "epoch 2/40")
    others[0].terminate()  # its node is drained
    statuses, output = finish([first, *others])
    assert statuses == [STOPPED for _ in indexes], output

    *others, first = [start_pod(index) for index in reversed(indexes)]
    statuses, output = finish([first, *others])
    assert statuses == [0 for _ in indexes], output
    assert "epoch 1/40" not in output
    home = tmp_path / "rampline" / "jobs" / training_job()["metadata"]["name"]
    [directory] = home.glob("runs/digits/*/multi-worker")
    assert (directory / "evaluation.json").is_file()
    assert (home / "data").resolve() == tmp_path / "rampline" / "data"

    # A pod that is made anew when all is done has nothing to do.
    assert finish([start_pod(index) for index in indexes])[0] == [0 for _ in indexes]


def test_ray_job_is_of_the_run_that_it_names():
    policy, job = manifests()["ray-job.yaml"]
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["rayVersion"] == version("ray")
    for template in _templates(job):
        assert policy["spec"]["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["rampline", "run"]
    run = next(run for run in load_study(words[2]).runs if run.name == words[words.index("--only") + 1])
    [workers] = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] == workers["replicas"] == workers["maxReplicas"] == run.config.cluster.workers
    [claim] = manifests()["storage.yaml"]
    assert _templates(job)[1]["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}


def _fields() -> dict[str, str]:
    job = training_job()
    name = job["metadata"]["name"]
    return {"metadata.labels['batch.kubernetes.io/job-name']": name, "metadata.namespace": "team"}
