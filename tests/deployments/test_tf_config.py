"""TF_CONFIG of the pods of a training Job, from the script that the pods run."""

import json
import runpy
from pathlib import Path

import pytest

from rampline.config import RunConfig
from rampline.config.sections import ClusterConfig
from rampline.devices import free_ports
from rampline.jobs.tf_config import Task, parse_tf_config

SCRIPT = Path(__file__).parents[2] / "deployments" / "kubernetes" / "tf_config.py"
POD = {"JOB_NAME": "digits", "SERVICE": "rampline-roles", "NAMESPACE": "team"}


MODULE = runpy.run_path(str(SCRIPT))


def make(**variables: str) -> dict:
    return MODULE["make_tf_config"](variables)


def parsed(config: RunConfig, index: int, **variables: str) -> Task:
    return parse_tf_config(json.dumps(make(JOB_COMPLETION_INDEX=str(index), **variables)), config)


def test_workers():
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=3))
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    tasks = [parsed(config, i, WORKERS="3", ADDRESSES=", ".join(addresses)) for i in range(3)]
    assert [(task.role, task.index, task.is_chief) for task in tasks] == [
        ("worker", 0, True),
        ("worker", 1, False),
        ("worker", 2, False),
    ]
    assert all(task.cluster == {"worker": tuple(addresses)} for task in tasks)


def test_parameter_servers():
    config = RunConfig(strategy="parameter_server", cluster=ClusterConfig(workers=2, parameter_servers=2))
    addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(5))
    given = {"WORKERS": "2", "PARAMETER_SERVERS": "2", "ADDRESSES": ",".join(addresses)}
    tasks = [parsed(config, i, **given) for i in range(5)]
    assert [task.name for task in tasks] == ["chief-0", "worker-0", "worker-1", "ps-0", "ps-1"]
    assert tasks[0].cluster == {"chief": addresses[:1], "worker": addresses[1:3], "ps": addresses[3:]}


def test_names_are_those_that_an_indexed_job_and_its_service_make():
    made = make(JOB_COMPLETION_INDEX="1", WORKERS="2", **POD)
    names = [f"digits-{i}.rampline-roles.team.svc.cluster.local:23450" for i in range(2)]
    assert made == {"cluster": {"worker": names}, "task": {"type": "worker", "index": 1}}
    made = make(JOB_COMPLETION_INDEX="0", WORKERS="1", PORT="7", CLUSTER_DOMAIN="example.org", **POD)
    assert made["cluster"] == {"worker": ["digits-0.rampline-roles.team.svc.example.org:7"]}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "WORKERS is not set"),
        ({"WORKERS": "two"}, "WORKERS=two: it must be a number"),
        ({"WORKERS": "0"}, "WORKERS=0: it must be 1 or more"),
        ({"WORKERS": "2", "JOB_COMPLETION_INDEX": "2"}, "the cluster has 2 roles"),
        ({"WORKERS": "2", "JOB_COMPLETION_INDEX": "0", "ADDRESSES": "a:1"}, "ADDRESSES has 1 entries"),
    ],
)
def test_what_is_missing_or_wrong_is_named(variables, message):
    with pytest.raises(MODULE["BadEnvironment"], match=message):
        make(**variables)
