"""The launcher of this machine: processes in sessions of their own, which end with the process that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from rampline.config import RunConfig
from rampline.config.sections import AUTO
from rampline.devices import available_cores, find_devices
from rampline.errors import ClusterConfigError, RunFailed
from rampline.jobs.fork_server import Process, fork_worker
from rampline.jobs.heartbeat import HeartbeatWatch
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.launcher import Node
from rampline.jobs.private_network import SHARED, Network
from rampline.jobs.role_output import telling_line
from rampline.jobs.roles import (
    check_devices,
    job_environment,
    local_tasks,
    network_of,
    network_warning,
    role_environment,
    worker_environment,
)
from rampline.jobs.tf_config import ALONE, Task
from rampline.record.run_directory import RunDirectory


@dataclass(kw_only=True)
class FileRole:
    """What is known of a role by files that this process sees, too, see `rampline.jobs.launcher.Role`.

    Attributes:
        log_offset: where its own part of the log begins, in bytes: others before it have written to it, too.
        heartbeat: its file is looked at by this process's clock.
    """

    label: str
    task: Task
    log: Path
    log_offset: int
    heartbeat: HeartbeatWatch

    @staticmethod
    def files(task: Task, job: Job, node: str = "") -> dict[str, Any]:
        """Its attributes, for a role that is about to start."""
        log = job.log_of(task)
        offset = log.stat().st_size if log.is_file() else 0
        watch = HeartbeatWatch(RunDirectory(job.folder).heartbeat_file(task.name))
        return {"label": job.label_of(task, node), "task": task, "log": log, "log_offset": offset, "heartbeat": watch}

    def silent_seconds(self) -> float:
        return self.heartbeat.silent_seconds()

    def entry(self, pid: int | None, host: str) -> dict[str, object]:
        """For `roles.json`."""
        own = {"role": self.task.role, "index": self.task.index, "pid": pid, "host": host}
        return {**own, "address": self.task.address, "log": str(self.log)}


@dataclass(kw_only=True)
class LocalRole(FileRole):
    """A process of this machine, in a session and group of its own."""

    process: Process

    @property
    def exit_status(self) -> int | None:
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        # The group outlives its leader as long as one member runs.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def last_line(self) -> str:
        return telling_line(self.log, self.log_offset)

    def describe(self) -> dict[str, object]:
        return self.entry(self.process.pid, socket.gethostname())


@dataclass(frozen=True)
class LocalPlacement:
    """Processes of this machine, see `rampline.jobs.launcher.Placement`.

    Attributes:
        config: of the run; `None` for jobs without peers.
        tasks: its roles here.
    """

    config: RunConfig | None
    tasks: Sequence[Task] = (ALONE,)
    machine = None

    @cached_property
    def _network(self) -> Network:
        return network_of(self.config, self.tasks) if self.config else SHARED

    @property
    def warning(self) -> str | None:
        return network_warning(self.config, self.tasks) if self.config else None

    def start(self, task: Task, job: Job) -> LocalRole:
        own = role_environment(task, self.config) if self.config else job_environment(job)
        files = FileRole.files(task, job)
        process = _start_process(job.folder, files["log"], {**own, **job.environment}, self._network)
        return LocalRole(**files, process=process)

    def close(self) -> frozenset[str]:
        return frozenset()  # nothing is left here of a process that was ended


@dataclass(frozen=True)
class Local:
    """Starts processes on this machine, see `rampline.jobs.launcher.Launcher`.

    Attributes:
        tasks: the roles to start of a run whose others a person starts elsewhere, as TF_CONFIG says; `None`: all roles,
            on this machine's loopback interface.
    """

    tasks: Sequence[Task] | None = None

    def nodes(self) -> Sequence[Node]:
        gpus = find_devices().gpus
        return [
            Node(
                name=socket.gethostname(),
                state="up",
                cores=available_cores(),
                gpus=len(gpus),
                gpu_kind=", ".join(dict.fromkeys(gpus)),
                memory_bytes=psutil.virtual_memory().total,
            )
        ]

    def check(self, config: RunConfig) -> None:
        self._check_parts(config)
        check_devices(config, workers=config.cluster.workers if self.tasks is None else 1)

    def room(self, config: RunConfig, *, avoid: Collection[str] = ()) -> int:
        return config.cluster.workers if self.tasks is None else self.tasks[0].workers

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> LocalPlacement:
        self._check_parts(config)
        return LocalPlacement(config, local_tasks(config, workers) if self.tasks is None else self.tasks)

    def _check_parts(self, config: RunConfig) -> None:
        """Each command would double the number of micro-batches by itself: the workers' steps must be the same."""
        is_part = self.tasks is not None and len(self.tasks) < self.tasks[0].roles
        if is_part and config.batch.accumulate == AUTO:
            raise ClusterConfigError(
                "batch.accumulate=auto needs one command that starts all roles of the run, and TF_CONFIG names others: "
                "set batch.accumulate to a number"
            )

    def place_jobs(self, jobs: Sequence[Job]) -> LocalPlacement:
        return LocalPlacement(None)


LOCAL = Local()
# For what needs no GPU: one that was touched would be short of memory in training.
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def run_without_gpu(function: str, what: str, arguments: Mapping[str, Any]) -> Any:
    """Run a small job here to its end; returns what its function returned.

    Raises:
        InputError: when it found its input wrong.
        RunFailed: when the process ended without an answer.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Job(function=function, what=what, folder=Path(folder), arguments=arguments, environment=NO_GPU)
        try:
            return run_job(job, launcher=LOCAL)
        except JobFailed as failure:
            raise RunFailed(f"{failure.label} {failure.how}") from failure  # its log goes with the folder


def _start_process(folder: Path, log: Path, environment: Mapping[str, str], network: Network) -> Process:
    """`python -m rampline.worker FOLDER`; in the block of a `fork_server` of this environment, a fork of that."""
    log.parent.mkdir(parents=True, exist_ok=True)
    whole = worker_environment({**environment, **network.environment})
    if forked := fork_worker([str(folder)], log, whole, network):
        return forked
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*network.command, sys.executable, "-P", "-m", "rampline.worker", str(folder)],
            env=whole,
            pass_fds=network.descriptors,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
