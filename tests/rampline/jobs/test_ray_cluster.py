"""Roles on a Ray node of 3 CPUs train as they do by the local launcher."""

import dataclasses
import logging
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults import assert_bit_equal
from ray_node import actors
from runs import make_config

from rampline.config import RunConfig
from rampline.errors import ClusterConfigError
from rampline.files import read_json
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.launchers import launcher_of, launcher_of_jobs
from rampline.jobs.ray_cluster import SETTINGS
from rampline.jobs.supervisor import supervise
from rampline.record.attempts import read_workers

pytestmark = pytest.mark.slow
TWO_WORKERS = make_config("multi_worker", model="small_models:with_all_state", workers=2)
SERVERS = make_config("parameter_server", workers=2, parameter_servers=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of one node with 3 CPUs, in a cluster of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**SETTINGS, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
            patch.setenv(name, value)
        import ray  # it reads them now

        ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield ray.get_runtime_context().gcs_address
        ray.shutdown()


def on_ray(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, launcher="ray"))


def test_two_workers_end_with_the_bits_of_a_local_run(make_run, cluster: str) -> None:
    local, run = make_run(TWO_WORKERS), make_run(on_ray(TWO_WORKERS))
    supervise(local, on_event=lambda event: None, log=print)
    supervise(run, on_event=lambda event: None, log=print)
    assert_bit_equal(run, local)


@pytest.mark.long
def test_parameter_servers_train(make_run, cluster: str) -> None:
    run = make_run(on_ray(SERVERS))
    assert supervise(run, on_event=lambda event: None, log=print)["epochs"] == SERVERS.epochs


def test_a_job_of_a_run_is_on_a_node_whose_actor_has_stayed(cluster: str, tmp_path: Path) -> None:
    model = {"name": "small_models:out_of_memory", "image_shape": [8, 8, 1], "classes": 3}
    job = Job(function="models", what="the look", folder=tmp_path / "job", arguments={"models": [model]})
    with pytest.raises(JobFailed, match=f"^the look on {socket.gethostname()} has no memory: MemoryError: 3 GiB"):
        run_job(job, launcher=launcher_of_jobs(on_ray(SERVERS)))
    assert len(actors(psutil.Process())) == 1


def test_a_run_that_the_cluster_can_never_hold_is_refused(cluster: str) -> None:
    config = on_ray(make_config("multi_worker", workers=4))
    assert launcher_of(config).room(config) == 3
    with pytest.raises(ClusterConfigError, match=r"has 3 CPUs and 0 GPUs on 1 nodes: the run's roles need 4 CPUs"):
        launcher_of(config).check(config)


class Holder:
    """Holds what it reserves."""


@pytest.mark.long
def test_an_elastic_run_leaves_what_others_need_and_takes_it_back(make_run, cluster: str) -> None:
    """With `sum: exact` the weights are those of a run that had two workers all the time."""
    import ray

    elastic = make_config("multi_worker", model="small_models:with_all_state", workers=2, min_workers=1, sum="exact")
    elastic = dataclasses.replace(elastic, epochs=30)
    whole, run = make_run(elastic), make_run(on_ray(elastic))
    supervise(whole, on_event=lambda event: None, log=print)
    lines, holders, attempts = list[str](), list[Any](), list[int]()

    def hear(event: dict) -> None:
        if event["event"] == "started":
            attempts.append(event["attempt"])
        if event["event"] != "epoch":
            return
        if len(attempts) == 1 and not holders:
            holders.append(ray.remote(num_cpus=2)(Holder).remote())
            roles = read_json(run.roles_file)["roles"]
            os.kill(next(role["pid"] for role in roles if role["index"] == 1), signal.SIGKILL)
        elif len(attempts) == 2 and holders:
            ray.kill(holders.pop())

    supervise(run, on_event=hear, log=lines.append)
    assert read_workers(run.attempts_file) == [2, 1, 2]
    assert sum("there is room for 2 workers instead of 1" in line for line in lines) == 1
    assert_bit_equal(run, whole)
