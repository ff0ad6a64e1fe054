"""Which roles a run has on this machine, and what each is started with."""

import dataclasses
import json
import os
import socket
from pathlib import Path

import pytest

from rampline.config import ClusterConfig, RunConfig
from rampline.devices import free_ports
from rampline.jobs.job import Job
from rampline.jobs.roles import job_environment, local_tasks, role_counts, role_environment, worker_environment
from rampline.jobs.tf_config import Task, parse_tf_config

CONFIGS = {
    "single": (RunConfig(), {"chief": 1}),
    "mirrored": (RunConfig(strategy="mirrored", cluster=ClusterConfig(replicas=2)), {"chief": 1}),
    "multi_worker": (RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=3)), {"worker": 3}),
    "parameter_server": (
        RunConfig(strategy="parameter_server", cluster=ClusterConfig(workers=2, parameter_servers=2)),
        {"chief": 1, "worker": 2, "ps": 2},
    ),
}
EVERY = pytest.mark.parametrize("config, counts", CONFIGS.values(), ids=CONFIGS)


@EVERY
def test_roles_of_every_strategy(config, counts):
    assert role_counts(config) == counts
    tasks = local_tasks(config)
    assert {role: sum(task.role == role for task in tasks) for role in counts} == counts
    assert len({task.name for task in tasks}) == len(tasks) == sum(counts.values())
    assert [task.is_chief for task in tasks] == [True] + [False] * (len(tasks) - 1)
    addresses = [address for hosts in tasks[0].cluster.values() for address in hosts]
    assert len(set(addresses)) == len(tasks)
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert all(task.is_on_loopback for task in tasks)


@EVERY
def test_every_role_understands_its_environment(config, counts):
    for task in local_tasks(config):
        environment = role_environment(task, config)
        assert parse_tf_config(environment["TF_CONFIG"], config) == task
        assert json.loads(environment["TF_CONFIG"])["task"] == {"type": task.role, "index": task.index}


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    for name, workers in (("multi_worker", 3), ("parameter_server", 2)):
        config = CONFIGS[name][0]
        threads = {role_environment(task, config)["TF_NUM_INTRAOP_THREADS"] for task in local_tasks(config)}
        assert threads == {str(max(1, cores // workers))}
    alone = CONFIGS["mirrored"][0]
    assert "TF_NUM_INTRAOP_THREADS" not in role_environment(local_tasks(alone)[0], alone)
    replicas = alone.cluster.replicas
    virtual = dataclasses.replace(alone, cluster=dataclasses.replace(alone.cluster, virtual_devices=replicas))
    threads = role_environment(local_tasks(virtual)[0], virtual)["TF_NUM_INTRAOP_THREADS"]
    assert threads == str(max(1, cores // replicas))


def test_roles_on_other_machines_take_no_share_of_this_one(monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr("rampline.jobs.roles.visible_gpu_ids", lambda: ["0", "1", "2", "3"])
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=3, replicas=2))
    cluster = {"worker": ("10.0.0.1:2000", "10.0.0.2:2000", "10.0.0.2:2001")}
    environments = [role_environment(Task(cluster=cluster, role="worker", index=i), config) for i in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["0,1", "0,1", "2,3"]
    assert ["TF_NUM_INTRAOP_THREADS" in each for each in environments] == [False, True, True]


def test_a_job_without_peers_has_the_gpus_that_it_asks_for(monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr("rampline.jobs.roles.visible_gpu_ids", lambda: ["4", "7"])
    monkeypatch.setattr("rampline.jobs.roles.available_cores", lambda: 12)
    jobs = [Job(function="probe", folder=Path("x"), gpus=range(n, n + 1), at_once=3) for n in range(3)]
    environments = [job_environment(job) for job in jobs]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in environments] == ["4", "7", "-1"]
    assert {each["TF_NUM_INTRAOP_THREADS"] for each in environments} == {"4"}
    assert job_environment(Job(function="prepare", folder=Path("x"))) == {"TF_CONFIG": "{}"}


@pytest.mark.parametrize("own, used", [(None, "true"), ("false", "false")])
def test_a_process_takes_the_memory_of_a_gpu_that_it_needs_unless_the_user_says_otherwise(own, used, monkeypatch):
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    if own:
        monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", own)
    assert worker_environment({})["TF_FORCE_GPU_ALLOW_GROWTH"] == used


def test_a_worker_has_as_many_threads_when_others_are_lost(monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setattr("rampline.jobs.roles.available_cores", lambda: 12)
    config = RunConfig(strategy="multi_worker", cluster=ClusterConfig(workers=3, min_workers=1))
    for workers in (1, 2, 3):
        environment = role_environment(local_tasks(config, workers)[0], config)
        assert environment["TF_NUM_INTRAOP_THREADS"] == "4"


def test_a_number_of_threads_that_the_user_has_set_is_kept(monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "7")
    config = CONFIGS["multi_worker"][0]
    assert "TF_NUM_INTRAOP_THREADS" not in role_environment(local_tasks(config)[0], config)


def test_free_ports_are_different_and_can_be_bound():
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
