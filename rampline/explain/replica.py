"""Starting the processes that measure one replica's share of the work, alone and as many at once. No TensorFlow."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rampline.config import BatchConfig, ClusterConfig, RunConfig, to_dict
from rampline.devices import available_cores
from rampline.errors import InputError, RunFailed
from rampline.jobs.job import Job, follow
from rampline.jobs.launcher import ending
from rampline.jobs.launchers import launcher_of_jobs
from rampline.jobs.roles import visible_gpu_ids
from rampline.record.run_directory import RunDirectory
from rampline.training.timings import ReplicaProbes

RESULTS = "results"
# Per measurement: the compilation of a large network, twice, and its rounds.
ALLOWANCE_SECONDS = 300

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What is measured once for all runs that share it.

    Attributes:
        config: one replica as a run of its own, see `replica_config`.
        dataset: directory of the prepared dataset.
        processes: how many replicas run at once on this machine.
    """

    config: RunConfig
    dataset: str
    processes: int

    @property
    def key(self) -> str:
        """Equal for equal work."""
        content = {"config": to_dict(self.config), "dataset": self.dataset, "processes": self.processes}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def is_virtual(self) -> bool:
        """Whether a machine with GPUs measures it on the processor."""
        return self.config.cluster.virtual_devices != 0


def replica_config(config: RunConfig, *, is_virtual: bool = False) -> RunConfig:
    """One replica of a run as a run of its own: its batch, its network from fresh weights, and nothing around it.

    Args:
        config: the run.
        is_virtual: whether it is measured on a virtual CPU device, on a machine that has a GPU.
    """
    keep = {"engine", "precision", "xla", "steps_per_call", "data", "optimizer", "explain"}
    return RunConfig(
        **{field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in keep},
        model=dataclasses.replace(config.model, weights="none"),
        batch=BatchConfig(size=config.per_replica_batch_size, per="global"),
        cluster=ClusterConfig(virtual_devices=int(is_virtual)),
    )


def work_of(run_directory: RunDirectory) -> Work:
    """The work of one replica of that run; of a run on several machines, as many at once as are on this one."""
    config = run_directory.read_config()
    is_spread = bool(os.environ.get("TF_CONFIG")) and config.strategy in ("multi_worker", "parameter_server")
    # Without a GPU a replica is on the processor anyway: runs with and without virtual devices share their work then.
    is_virtual = bool(config.cluster.virtual_devices) and bool(visible_gpu_ids())
    return Work(
        config=replica_config(config, is_virtual=is_virtual),
        dataset=run_directory.read_identity().dataset,
        processes=config.cluster.replicas if is_spread else config.replicas,
    )


def measure_replicas(run_directories: Iterable[RunDirectory], folder: Path, *, log: Log) -> None:
    """Write `replica.json` into each run directory that has none; equal work is measured once.

    Whatever ends this call, none of its processes is alive afterwards.

    Args:
        run_directories: complete runs.
        folder: for the plan and the logs of the processes.
        log: gets a line per launch.

    Raises:
        RunFailed: when a process fails, naming its log.
    """
    wanted = _wanted(run_directories)
    for (processes, is_virtual), works in _launches(wanted).items():
        log(f"explain: one replica's work, alone{f' and {processes} at once' if processes > 1 else ''}")
        results = _launch(works, processes, is_virtual, _launch_folder(folder, processes, is_virtual))
        for directory, work in wanted:
            if work.key in results:
                results[work.key].write(directory.replica_file)


def _wanted(run_directories: Iterable[RunDirectory]) -> list[tuple[RunDirectory, Work]]:
    return [(directory, work_of(directory)) for directory in run_directories if not directory.replica_file.is_file()]


def _launches(wanted: Iterable[tuple[RunDirectory, Work]]) -> dict[tuple[int, bool], list[Work]]:
    """The distinct works, by how many replicas run at once and whether on virtual devices, the fewest first.

    Processes share the cores of this machine as the roles did: so each number of them has its own launch.
    """
    works = {work.key: work for _, work in wanted}.values()
    launches: dict[tuple[int, bool], list[Work]] = {}
    for work in sorted(works, key=lambda work: (work.processes, work.is_virtual)):
        launches.setdefault((work.processes, work.is_virtual), []).append(work)
    return launches


def _launch_folder(folder: Path, processes: int, is_virtual: bool) -> Path:
    return folder / f"{processes}{'-virtual' if is_virtual else ''}"


def _count(processes: int) -> int:
    """Number 0 measures alone, with the whole machine; the others measure at once, each with its share of it."""
    return processes + 1 if processes > 1 else 1


def _launch(works: Sequence[Work], processes: int, is_virtual: bool, folder: Path) -> dict[str, ReplicaProbes]:
    shutil.rmtree(folder, ignore_errors=True)
    plan = [{"key": w.key, "config": to_dict(w.config), "dataset": w.dataset} for w in works]
    jobs = [
        Job(
            function="probe",
            what="a probe of one replica",
            folder=folder / str(index),
            log=folder / f"{index}.log",
            arguments={"index": index, "works": plan, "processes": processes},
            environment=_environment(index, processes, is_virtual),
            timeout_seconds=ALLOWANCE_SECONDS * len(works),
        )
        for index in range(_count(processes))
    ]
    launcher = launcher_of_jobs(works[0].config)
    try:
        with ending() as probes:
            for job in jobs:
                job.write()
                probes.append(launcher.start(job))
            follow(probes, jobs[0])
    except InputError as error:  # the run that it is about has trained
        raise RunFailed(f"a probe of one replica failed: {error}") from error
    return {work.key: ReplicaProbes.read(folder / RESULTS / f"{work.key}.json") for work in works}


def _environment(index: int, processes: int, is_virtual: bool) -> dict[str, str]:
    """What it has beside ours: a GPU of its own, or the processor where there is none for it, and a share of cores."""
    environment, gpus = {"TF_CONFIG": ""}, visible_gpu_ids()
    if gpus:
        own = [] if is_virtual else gpus[max(index - 1, 0) :][:1]
        environment["CUDA_VISIBLE_DEVICES"] = own[0] if own else "-1"
    if index and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        environment["TF_NUM_INTRAOP_THREADS"] = str(max(1, available_cores() // processes))
    return environment
