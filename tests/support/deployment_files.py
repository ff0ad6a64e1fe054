"""The files in deployments/ as the programs that use them would read them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

DEPLOYMENTS = Path(__file__).parents[2] / "deployments"
_COMPOSE_VARIABLE = re.compile(r"\$\{(\w+)(:[?-][^}]*)?\}")
_POD_VARIABLE = re.compile(r"\$\((\w+)\)")


def manifests() -> dict[str, list[dict[str, Any]]]:
    """The objects in deployments/kubernetes, by name of the file."""
    files = sorted((DEPLOYMENTS / "kubernetes").glob("*.yaml"))
    return {file.name: list(yaml.safe_load_all(file.read_text())) for file in files}


def training_job(file: str = "training-job.yaml") -> dict[str, Any]:
    """The Job in training-job.yaml, or the one that a controller makes of the JobSet in job-set.yaml."""
    return next(job for found in manifests()[file] for job in jobs_of(found))


def jobs_of(item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The object itself if it is a Job, or those that it is made into."""
    if item["kind"] == "Job":
        return [dict(item)]
    jobs = item["spec"]["replicatedJobs"] if item["kind"] == "JobSet" else []
    name = item["metadata"]["name"]
    return [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": f"{name}-{job['name']}-0"}, **job["template"]}
        for job in jobs
    ]


def pod_fields(job: Mapping[str, Any], namespace: str = "team") -> dict[str, str]:
    """What fields of a Job's pods hold that controllers set."""
    name = job["metadata"]["name"]
    return {
        "metadata.labels['batch.kubernetes.io/job-name']": name,
        "metadata.labels['jobset.sigs.k8s.io/jobset-name']": name.removesuffix("-role-0"),
        "metadata.namespace": namespace,
    }


def pod_environment(container: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, str]:
    """The environment that Kubernetes makes of a container's `env`.

    Args:
        container: of a pod.
        fields: what the pod's fields hold, by `fieldPath`.
    """
    environment: dict[str, str] = {}
    for entry in container["env"]:
        value = entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        environment[entry["name"]] = _POD_VARIABLE.sub(lambda found: environment[found[1]], value)
    return environment


def compose_text() -> str:
    """compose.yaml as it is written."""
    return (DEPLOYMENTS / "compose.yaml").read_text()


def compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """compose.yaml with its variables filled in.

    Raises:
        ValueError: when a variable that must not be empty is.
    """

    def value(found: re.Match[str]) -> str:
        how, instead = (found[2] or "")[:2], (found[2] or "")[2:]
        if how == ":?" and not variables.get(found[1]):
            raise ValueError(f"{found[1]}: {instead}")
        return variables.get(found[1]) or (instead if how == ":-" else "")

    return yaml.safe_load(_COMPOSE_VARIABLE.sub(value, compose_text()))


def compose_variables() -> set[str]:
    """Names of the variables in compose.yaml."""
    return {name for name, _ in _COMPOSE_VARIABLE.findall(compose_text())}


def example_environment() -> dict[str, str]:
    """compose.env.example."""
    lines = (DEPLOYMENTS / "compose.env.example").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: text for name, _, text in pairs}


def without_secrets() -> dict[str, str]:
    """Our environment without what leads to the user's servers or files."""
    prefixes = ("PREFECT_", "MLFLOW_", "RAMPLINE_", "TF_CONFIG")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
