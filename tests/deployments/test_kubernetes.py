"""The Kubernetes manifests: against the schemas of Kubernetes, and the Job's own commands as plain processes."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from command_line import read_until
from deployment_files import (
    DEPLOYMENTS,
    jobs_of,
    manifests,
    pod_environment,
    pod_fields,
    training_job,
    without_secrets,
)
from faults import assert_bit_equal
from hosts import make_hosts, why_not
from own_prefect import PrefectServer
from ray_node import make_address, ray_node

from rampline.devices import free_ports
from rampline.jobs.exit_status import STOPPED, WRONG_INPUT
from rampline.jobs.supervisor import supervise
from rampline.record.attempts import tell_attempts
from rampline.record.run_directory import RunDirectory
from rampline.study.content import load_study


def _templates(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the pods that an object makes."""
    if item["kind"] != "RayJob":
        return [job["spec"]["template"] for job in jobs_of(item)]
    cluster = item["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [item["spec"]["submitterPodTemplate"], *(group["template"] for group in groups)]


ITEMS = [(file, item) for file, found in manifests().items() for item in found]
PODS = [template["spec"] for _, item in ITEMS for template in _templates(item)]
# Those that Kubernetes itself knows, and what it gets of the others.
OBJECTS = [
    pytest.param(known, id=f"{file}-{known['kind']}")
    for file, item in ITEMS
    if item["kind"] != "RayJob"
    for known in jobs_of(item) or [item]
]
OBJECTS += [
    pytest.param(
        {"apiVersion": "v1", "kind": "Pod", **template}, id=f"{file}-{template['spec']['containers'][0]['name']}"
    )
    for file, item in ITEMS
    if item["kind"] == "RayJob"
    for template in _templates(item)
]
# What two controllers know of their own objects, by the place in them: names, and for some the values that they may
# have. Those of a RayJob are in KubeRay's API reference (ray.io/v1, of KubeRay 1.6), those of a JobSet in JobSet's
# jobset_types.go (jobset.x-k8s.io/v1alpha2, of JobSet 0.10). The Jobs and pods within them are among `OBJECTS`.
FIELDS = {
    "RayJob": {
        "": "apiVersion=ray.io/v1 kind metadata spec",
        "spec": "activeDeadlineSeconds backoffLimit clusterSelector deletionStrategy entrypoint entrypointNumCpus "
        "entrypointNumGpus entrypointResources jobId managedBy metadata rayClusterSpec runtimeEnvYAML "
        "shutdownAfterJobFinishes submissionMode=K8sJobMode|HTTPMode|InteractiveMode submitterConfig "
        "submitterPodTemplate suspend ttlSecondsAfterFinished",
        "spec.submitterConfig": "backoffLimit",
        "spec.rayClusterSpec": "authOptions autoscalerOptions enableInTreeAutoscaling gcsFaultToleranceOptions "
        "headGroupSpec headServiceAnnotations managedBy rayVersion suspend workerGroupSpecs",
        "spec.rayClusterSpec.authOptions": "mode=token|disabled secretName",
        "spec.rayClusterSpec.headGroupSpec": "enableIngress headService rayStartParams serviceType template",
        "spec.rayClusterSpec.workerGroupSpecs": "groupName maxReplicas minReplicas numOfHosts rayStartParams replicas "
        "scaleStrategy template",
    },
    "JobSet": {
        "": "apiVersion=jobset.x-k8s.io/v1alpha2 kind metadata spec",
        "spec": "coordinator failurePolicy managedBy network replicatedJobs successPolicy suspend "
        "ttlSecondsAfterFinished volumeClaimPolicies",
        "spec.network": "enableDNSHostnames publishNotReadyAddresses subdomain",
        "spec.failurePolicy": "maxRestarts restartStrategy=Recreate|BlockingRecreate rules",
        "spec.failurePolicy.rules": "action=FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts name "
        "onJobFailureReasons targetReplicatedJobs",
        "spec.replicatedJobs": "dependsOn groupName name replicas template",
    },
}
# The oldest in which all that is used is stable (podFailurePolicy: 1.31), and the newest that the package knows.
VERSIONS = ("1.31", kubernetes_validate.latest_version())
IMAGE_FOLDER = "/opt/rampline"
JOBS = ("training-job.yaml", "job-set.yaml")
# For a training that is over soon.
SETTINGS = [f"--set={setting}" for setting in ("epochs=20", "data.limit=20", "explain.steps=0")]
ONE_THREAD = ("TF_NUM_INTRAOP_THREADS", "1")  # with another number sums have other bits
# A command whose names in DNS are those of a file, on a host with the name that follows the file.
WITH_NAMES = ("unshare", "--mount", "--uts", "sh", "-c")
WITH_NAMES += ('mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"',)


@pytest.mark.parametrize("item", OBJECTS)
def test_objects_fit_the_schemas(item):
    for kubernetes in VERSIONS:
        kubernetes_validate.validate(item, kubernetes, strict=True)


def test_schemas_find_a_mistake():
    job = training_job()
    job["spec"]["completionmode"] = "Indexed"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)


def unknown_fields(part: Any, fields: dict[str, str], place: str = "") -> list[str]:
    """Names, and values, that `fields` does not have for their place."""
    if isinstance(part, list):
        return [found for each in part for found in unknown_fields(each, fields, place)]
    if place not in fields:
        return []
    known = {name: values.split("|") for name, _, values in (word.partition("=") for word in fields[place].split())}
    found = list[str]()
    for name, value in part.items():
        at = f"{place}.{name}".lstrip(".")
        if name not in known:
            found.append(at)
        elif any(known[name]) and value not in known[name]:
            found.append(f"{at}={value}")
        found += unknown_fields(value, fields, at)
    return found


@pytest.mark.parametrize("item", [pytest.param(item, id=file) for file, item in ITEMS if item["kind"] in FIELDS])
def test_fields_of_controllers_are_known(item: dict[str, Any]) -> None:
    assert unknown_fields(item, FIELDS[item["kind"]]) == []


def test_an_unknown_field_of_a_controller_is_found() -> None:
    job, job_set = (manifests()[file][1] for file in ("ray-job.yaml", "job-set.yaml"))
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["minReplica"] = 2
    job["spec"]["rayClusterSpec"]["authOptions"]["mode"] = "tokens"
    assert unknown_fields(job, FIELDS["RayJob"]) == [
        "spec.rayClusterSpec.authOptions.mode=tokens",
        "spec.rayClusterSpec.workerGroupSpecs.minReplica",
    ]
    job_set["spec"]["failurePolicy"]["rules"][0]["onJobFailureReason"] = ["PodFailurePolicy"]
    assert unknown_fields(job_set, FIELDS["JobSet"]) == ["spec.failurePolicy.rules.onJobFailureReason"]


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


@pytest.mark.parametrize("file", JOBS)
def test_number_of_pods_is_the_number_of_roles(file):
    job = training_job(file)
    spec = job["spec"]
    environment = pod_environment(spec["template"]["spec"]["containers"][0], pod_fields(job))
    workers, parameter_servers = int(environment["WORKERS"]), int(environment["PARAMETER_SERVERS"])
    assert spec["completions"] == spec["parallelism"] == workers + parameter_servers + bool(parameter_servers)


def test_names_that_must_agree():
    service, policy, job = manifests()["training-job.yaml"]
    pod = job["spec"]["template"]
    environment = pod_environment(pod["spec"]["containers"][0], pod_fields(job))
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


def test_names_of_the_job_set_that_must_agree():
    policy, job_set = manifests()["job-set.yaml"]
    selector = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": job_set["metadata"]["name"]}}
    assert policy["spec"]["podSelector"] == selector
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": selector}]}]
    # Of the name of its one Job, as `pod_fields` has it.
    assert [(job["name"], job["replicas"]) for job in job_set["spec"]["replicatedJobs"]] == [("role", 1)]
    [claim] = manifests()["storage.yaml"]
    pod = training_job("job-set.yaml")["spec"]["template"]["spec"]
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": claim["metadata"]["name"]}


@pytest.mark.parametrize("file", JOBS)
def test_exit_statuses_are_those_of_the_commands(file):
    rules = training_job(file)["spec"]["podFailurePolicy"]["rules"]
    by_code = {tuple(rule["onExitCodes"]["values"]): rule["action"] for rule in rules if "onExitCodes" in rule}
    assert by_code == {(WRONG_INPUT,): "FailJob", (STOPPED,): "Ignore"}


def command_here(job: dict[str, Any]) -> list[str]:
    """The command of its pods in this checkout, with a training that is over soon."""
    container = job["spec"]["template"]["spec"]["containers"][0]
    command = [*container["command"], *container["args"], *SETTINGS]
    return [part.replace(IMAGE_FOLDER, str(DEPLOYMENTS.parent)) for part in command]


def pod_here(template: dict[str, Any], fields: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of its pods, with the volume in a folder of this machine."""
    pod = pod_environment(template["spec"]["containers"][0], fields)
    pod = {name: re.sub("^/(?=rampline|tmp)", f"{folder}/", value) for name, value in pod.items()}
    return pod | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def start_pod(stack, tmp_path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """`start_pod(0)` starts the command of the Job's pod 0 with its environment, loopback in place of names."""
    job, started = training_job(), []
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(job["spec"]["completions"]))
    command = command_here(job)
    own = pod_here(job["spec"]["template"], pod_fields(job), tmp_path) | {"ADDRESSES": addresses}

    def start(index: int) -> subprocess.Popen[str]:
        environment = without_secrets() | own | stack.prefect | {"JOB_COMPLETION_INDEX": str(index)}
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        started.append(subprocess.Popen(command, env=environment, cwd=tmp_path, start_new_session=True, **output))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def finish(pods: Sequence[subprocess.Popen[str]]) -> tuple[list[int | None], str]:
    """How they ended, and what they have printed."""
    # Pod 0 comes first: the others would wait long for one that has failed.
    outputs = [pods[0].communicate()[0]]
    for pod in pods[1:] if pods[0].returncode in (0, STOPPED) else ():
        outputs.append(pod.communicate()[0])
    return [pod.poll() for pod in pods], "\n".join(outputs)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_pods_of_the_job_as_plain_processes(start_pod, tmp_path):
    indexes = range(training_job()["spec"]["completions"])
    # Pod 0 last: the others wait for the run directory.
    *others, first = [start_pod(index) for index in reversed(indexes)]
    read_until(first, "epoch 2/20")
    others[0].terminate()  # its node is drained
    statuses, output = finish([first, *others])
    assert statuses == [STOPPED for _ in indexes], output

    *others, first = [start_pod(index) for index in reversed(indexes)]
    statuses, output = finish([first, *others])
    assert statuses == [0 for _ in indexes], output
    assert "epoch 1/20" not in output
    directory = tmp_path / "rampline/runs/digits" / training_job()["metadata"]["name"] / "multi-worker"
    assert (directory / "evaluation.json").is_file()

    # A pod that is made anew when all is done has nothing to do.
    assert finish([start_pod(index) for index in indexes])[0] == [0 for _ in indexes]


@pytest.fixture
def start_on_host(tmp_path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """`start_on_host(0)` starts the command of the JobSet's pod 0 on a host that finds its peers by their names."""
    job, started = training_job("job-set.yaml"), []
    environment = pod_here(job["spec"]["template"], pod_fields(job), tmp_path) | dict([ONE_THREAD])
    names = tmp_path / "hosts"
    domain = f"{environment['SERVICE']}.{environment['NAMESPACE']}.svc.cluster.local"
    with make_hosts(job["spec"]["completions"]) as hosts:
        lines = [f"{host.address} {environment['JOB_NAME']}-{index}.{domain}" for index, host in enumerate(hosts)]
        names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

        def start(index: int) -> subprocess.Popen[str]:
            own = without_secrets() | environment | {"JOB_COMPLETION_INDEX": str(index)}
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            command = [*WITH_NAMES, str(names), f"{own['JOB_NAME']}-{index}", *command_here(job)]
            host = hosts.hosts[index]
            started.append(host.start(command, env=own, cwd=tmp_path, start_new_session=True, **output))
            return started[-1]

        yield start
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_pods_of_the_job_set_on_hosts_with_its_names(start_on_host, tmp_path, forks, monkeypatch):
    """One is killed, so all are ended and started again, as JobSet does it."""
    lost, first = start_on_host(1), start_on_host(0)
    read_until(first, "epoch 2/20")
    os.killpg(lost.pid, signal.SIGKILL)
    first.terminate()
    for pod in (first, lost):
        pod.communicate()
    other, first = start_on_host(1), start_on_host(0)
    statuses, output = finish([first, other])
    assert statuses == [0, 0], output
    assert "epoch 1/20" not in output
    directory = RunDirectory(tmp_path / "rampline/runs/digits/digits-multi-worker/multi-worker")
    config, whole = directory.read_config(), RunDirectory(tmp_path / "whole")
    local = dataclasses.replace(config.cluster, launcher="local")
    whole.create(dataclasses.replace(config, cluster=local), directory.read_identity())
    monkeypatch.setenv(*ONE_THREAD)
    supervise(whole, on_event=lambda event: None, log=print)
    assert_bit_equal(directory, whole)
    # Worker 1 is on the host that TF_CONFIG names.
    assert all(
        row[1].endswith(", digits-multi-worker-role-0-1.digits-multi-worker.team.svc.cluster.local")
        for row in tell_attempts(directory)
    )


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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_command_of_the_ray_job_as_a_plain_process(prefect_server: PrefectServer, tmp_path: Path) -> None:
    """It is asked to stop, and tried again in another cluster, as KubeRay does it."""
    _, job = manifests()["ray-job.yaml"]
    environment = without_secrets() | pod_here(_templates(job)[1], {}, tmp_path) | prefect_server.prefect
    statuses, outputs = list[int](), list[str]()
    for attempt in (1, 2):
        cluster = environment | make_address()
        with ray_node(cluster, 2):
            words = [*job["spec"]["entrypoint"].split(), *SETTINGS]
            output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
            with subprocess.Popen(words, env=cluster, cwd=tmp_path, start_new_session=True, **output) as command:
                if attempt == 1:
                    read_until(command, "epoch 2/20")
                    command.terminate()
                outputs.append(command.communicate()[0])
            statuses.append(command.returncode)
    assert statuses == [STOPPED, 0], outputs
    assert "epoch 1/20" not in outputs[1]
    directory = tmp_path / "rampline/runs/digits" / job["metadata"]["name"] / "multi-worker"
    assert (directory / "evaluation.json").is_file()
