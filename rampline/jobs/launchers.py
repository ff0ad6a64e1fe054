"""The launchers, by the names that `cluster.launcher` gives them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable

from rampline.config import RunConfig
from rampline.devices import find_devices
from rampline.errors import ClusterConfigError
from rampline.jobs.launcher import Launcher
from rampline.jobs.local import LOCAL, Local
from rampline.jobs.slurm import SLURM
from rampline.jobs.tf_config import parse_tf_config


def launcher_of(config: RunConfig) -> Launcher:
    """The launcher of a run's roles.

    Raises:
        ClusterConfigError: when TF_CONFIG is missing or wrong, or names another role than the chief, which tells how
            the run goes.
    """
    return LAUNCHERS[config.cluster.launcher](config)


def launcher_of_jobs(config: RunConfig) -> Launcher:
    """The launcher of what is done for a run beside its roles: parity, probes, evaluation, tuning.

    Where a person starts the roles of other machines, nobody starts these jobs there: they are on this machine. What
    belongs to no run starts beside its caller, on its files, by `LOCAL`: preparing data, labelling images, and looking
    at the models of a study.
    """
    return LOCAL if config.cluster.launcher in ("local", "hand") else launcher_of(config)


def prepare_nodes(configs: Iterable[RunConfig], *, has_turn: bool) -> None:
    """Begin what takes seconds before the first role of these runs on Ray, while the rest of the command starts.

    A cluster of this machine alone has the GPUs that it sees when it starts: before the command's turn (`has_turn`),
    those of others are among them, and it is not started.

    Raises:
        ClusterConfigError, RunFailed: where the cluster does not answer.
    """
    for config in configs:
        if config.cluster.launcher == "ray":
            from rampline.jobs.ray_cluster import RAY  # Ray is an extra

            if has_turn or not (RAY.is_to_start and find_devices().gpus):
                RAY.prepare(config)


def gpus_of_machine(config: RunConfig) -> int:
    """GPUs of a machine that the run's roles get: of the nodes of a Ray cluster the most, else those of this machine.

    Raises:
        ClusterConfigError: where nobody answers who knows them.
    """
    if config.cluster.launcher == "ray":
        return max((node.gpus for node in launcher_of(config).nodes()), default=0)
    return len(find_devices().gpus)


def resolve_virtual_devices(config: RunConfig) -> RunConfig:
    """`config` with a number for `cluster.virtual_devices: auto`: what a machine needs to hold the replicas.

    That is `cluster.replicas` for `mirrored` on a machine without a GPU, and 1 for workers on one with fewer GPUs than
    workers, else 0: without a GPU the other strategies have one device per process on the CPU anyway.
    """
    cluster = config.cluster
    if cluster.virtual_devices != "auto":
        return config
    gpus = gpus_of_machine(config)
    virtual = cluster.replicas if config.strategy == "mirrored" and not gpus else 0
    if cluster.launcher == "local" and cluster.replicas == 1 and 0 < gpus < cluster.workers:
        virtual = 1
    return dataclasses.replace(config, cluster=dataclasses.replace(cluster, virtual_devices=virtual))


def _local(config: RunConfig) -> Launcher:
    """As `hand` where a person has set TF_CONFIG for a run of several processes, else all roles on this machine."""
    return _hand(config) if os.environ.get("TF_CONFIG") else LOCAL


def _hand(config: RunConfig) -> Launcher:
    """Of the role that TF_CONFIG names, where the run has several processes."""
    if config.strategy in ("single", "mirrored"):
        return LOCAL
    text = os.environ.get("TF_CONFIG")
    if not text:
        raise ClusterConfigError("cluster.launcher=hand needs TF_CONFIG, which says where each role of the run is")
    task = parse_tf_config(text, config)
    if not task.is_chief:
        chief = "the chief" if "chief" in task.cluster else "worker 0"
        raise ClusterConfigError(
            f"TF_CONFIG names {task.role} {task.index}: a run is started as {chief}, its other roles by rampline worker"
        )
    return Local([task])


def _slurm(_: RunConfig) -> Launcher:
    return SLURM


def _ray(_: RunConfig) -> Launcher:
    from rampline.jobs.ray_cluster import RAY  # Ray is an extra

    return RAY


LAUNCHERS = {"local": _local, "hand": _hand, "ray": _ray, "slurm": _slurm}
