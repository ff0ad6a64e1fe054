"""Which roles a run has on this machine, with addresses, threads and GPUs for each, and whether they fit on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rampline.config import RunConfig
from rampline.devices import LOOPBACK, available_cores, find_devices, free_ports, visible_gpu_ids
from rampline.errors import ClusterConfigError
from rampline.jobs.job import Job
from rampline.jobs.private_network import SHARED, Network, other_users, private_network
from rampline.jobs.tf_config import Task, tasks_of

# Without them a parameter server's chief waits for ever for a worker behind a dead network: gRPC's clients get a
# TCP_USER_TIMEOUT only with keepalive. TensorFlow reads the variable in its grpc_util.cc.
KEEPALIVE = ("grpc.keepalive_time_ms=10000", "grpc.keepalive_timeout_ms=10000", "grpc.http2.max_pings_without_data=0")
# gRPC's frames of 16 KiB, and the window that goes with them, cost an all-reduce a tenth of a small network's step.
LARGE_FRAMES = ("grpc.http2.max_frame_size=16777215", "grpc.http2.lookahead_bytes=4194304")


def check_devices(config: RunConfig, *, workers: int = 1) -> None:
    """Refuse a run whose replicas do not fit on this machine's devices.

    On a machine without a GPU worker processes share the CPU. Virtual devices always fit; `auto` must be resolved
    before.

    Args:
        config: the run.
        workers: how many of its workers are on this machine.

    Raises:
        ClusterConfigError: naming what is asked for, what there is and the way out.
    """
    cluster = config.cluster
    if int(cluster.virtual_devices) >= cluster.replicas:
        return
    devices = find_devices()
    if cluster.replicas > devices.count:
        way_out = f"set cluster.virtual_devices={cluster.replicas} to run them as virtual devices on the CPU"
        if config.strategy == "multi_worker":  # which has one CPU device per worker
            way_out = "let each worker have one device, and raise cluster.workers"
        wanted = f"cluster.replicas={cluster.replicas} needs {cluster.replicas} devices"
        raise ClusterConfigError(f"{wanted}: this machine has {devices}; {way_out}")
    needed = workers * cluster.replicas
    # TensorFlow's collectives end with an error where one worker has a GPU and another has none.
    if devices.gpus and needed > devices.count:
        way_out = "; set cluster.virtual_devices=1 to run them on the CPU" if cluster.replicas == 1 else ""
        raise ClusterConfigError(f"cluster.workers={workers} needs {needed} GPUs: this machine has {devices}{way_out}")


def local_tasks(config: RunConfig, workers: int | None = None) -> list[Task]:
    """One task per role, with free loopback ports; the chief, or worker 0, comes first."""
    counts = role_counts(config, workers)
    ports = iter(free_ports(sum(counts.values())))
    return tasks_of({role: tuple(f"{LOOPBACK}:{next(ports)}" for _ in range(n)) for role, n in counts.items()})


def role_counts(config: RunConfig, workers: int | None = None) -> dict[str, int]:
    """Number of processes by role, such as `{"chief": 1, "worker": 2, "ps": 1}`; of an elastic run with `workers`."""
    workers = config.cluster.workers if workers is None else workers
    if config.strategy == "parameter_server":
        return {"chief": 1, "worker": workers, "ps": config.cluster.parameter_servers}
    if config.strategy == "multi_worker":
        return {"worker": workers}
    return {"chief": 1}


def network_of(config: RunConfig, tasks: Sequence[Task]) -> Network:
    """The network that the roles which this process starts are in.

    One of their own, if all roles of the run are among `tasks` and none needs another: a model function may, and
    `imagenet` weights are downloaded where they are missing.
    """
    is_whole = len(tasks) == tasks[0].roles and tasks[0].is_on_loopback
    needs_other = ":" in config.model.name or config.model.weights == "imagenet"
    if not _has_servers(config) or not is_whole or needs_other:
        return SHARED
    # CUDA makes what is missing of its devices by a program with root's rights, which a user namespace takes away.
    has_devices = os.geteuid() == 0 or not find_devices().gpus or Path("/dev/nvidia-uvm").exists()
    return private_network() if has_devices else SHARED


def network_warning(config: RunConfig, tasks: Sequence[Task]) -> str | None:
    """One line for the user where others than the run's roles reach TensorFlow's servers."""
    if tasks[0].network_warning or not _has_servers(config) or network_of(config, tasks) is not SHARED:
        return tasks[0].network_warning
    if not (others := ", ".join(other_users())):
        return None
    servers = "TensorFlow's gRPC servers on 127.0.0.1 let in every user of this machine"
    return f"{servers}: while this run trains, {others} can run code as you (docs/trust.md)"


def _has_servers(config: RunConfig) -> bool:
    return config.strategy in ("multi_worker", "parameter_server")


def role_environment(task: Task, config: RunConfig) -> dict[str, str]:
    """What a role's environment has beside its parent's: TF_CONFIG, its share of the cores and of the GPUs."""
    environment = {"TF_CONFIG": task.to_json(), "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")}
    if _has_servers(config):
        environment["TF_GRPC_DEFAULT_OPTIONS"] = os.environ.get(
            "TF_GRPC_DEFAULT_OPTIONS", ",".join([*KEEPALIVE, *LARGE_FRAMES])
        )
    here = _computing_beside(task, config)
    # With another number of threads sums have other bits: a run that has lost a worker leaves its share unused.
    workers = config.cluster.workers if task.is_on_loopback else len(here)
    # Virtual devices of one process compute at the same time: with a thread each they waste a tenth less on waiting.
    computing = workers * (config.cluster.replicas if config.cluster.virtual_devices else 1)
    if computing > 1 and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        environment["TF_NUM_INTRAOP_THREADS"] = str(max(1, available_cores() // computing))
    gpus = visible_gpu_ids()
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(_gpus_of(task, config, here, gpus)) or "-1"
    return environment


def job_environment(job: Job) -> dict[str, str]:
    """What a job without peers has beside its parent's environment: its share of the cores and of the GPUs."""
    environment, gpus = {"TF_CONFIG": "{}"}, visible_gpu_ids()
    if job.gpus is not None and gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[job.gpus.start : job.gpus.stop]) or "-1"
    if job.at_once > 1 and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        environment["TF_NUM_INTRAOP_THREADS"] = str(max(1, available_cores() // job.at_once))
    return environment


def worker_environment(more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process with TensorFlow: this process's, `more`, and what ends it with this process."""
    # By itself TensorFlow takes all free memory of a GPU; the user's own value counts.
    shared = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return {**shared, **os.environ, **more, "RAMPLINE_PARENT_PID": str(os.getpid()), "PYTHONUNBUFFERED": "1"}


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """In the block a variable of the environment has that value, here and in all processes that are started."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _computing_beside(task: Task, config: RunConfig) -> list[str]:
    """Addresses of the roles that have replicas and are on the machine of this one, in their order."""
    roles = ("chief", "worker") if config.is_synchronous else ("worker",)
    addresses = (address for role in roles for address in task.cluster.get(role, ()))
    return [address for address in addresses if address.rpartition(":")[0] == task.host]


def _gpus_of(task: Task, config: RunConfig, here: Sequence[str], gpus: list[str]) -> list[str]:
    if config.cluster.virtual_devices or task.address not in here:
        return []
    count = config.cluster.replicas if config.is_synchronous else 1
    first = here.index(task.address) * count
    return gpus[first : first + count]
