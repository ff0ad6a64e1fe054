"""Starting the processes that measure one replica's share of the work, alone and as many at once. No TensorFlow."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rampline.config import ClusterConfig, RunConfig, to_dict
from rampline.config.sections import AUTO
from rampline.devices import visible_gpu_ids
from rampline.errors import InputError, RunFailed
from rampline.files import json_digest, read_json
from rampline.jobs.exit_status import WRONG_INPUT
from rampline.jobs.job import Job, JobFailed, run_together
from rampline.jobs.launchers import launcher_of_jobs
from rampline.jobs.tf_config import ALONE
from rampline.record.attempts import read_accumulate
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
        batch_size: examples of one replica; fewer than those of `config` where the dataset fills no global batch.
        processes: how many replicas run at once on this machine.
    """

    config: RunConfig
    dataset: str
    batch_size: int
    processes: int

    @property
    def key(self) -> str:
        """Equal for equal work."""
        content = {"config": to_dict(self.config), "dataset": self.dataset, "processes": self.processes}
        content |= {"batch_size": self.batch_size}
        return json_digest(content)[:16]

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
    keep = {"engine", "precision", "xla", "deterministic", "steps_per_call", "data"}
    keep |= {"optimizer", "loss", "metrics", "explain"}
    return RunConfig(
        **{field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name in keep},
        model=dataclasses.replace(config.model, weights="none"),
        batch=dataclasses.replace(config.batch, size=config.per_replica_batch_size, per="global"),
        cluster=ClusterConfig(virtual_devices=int(is_virtual), launcher=config.cluster.launcher),
    )


def needs_virtual_device(config: RunConfig) -> bool:
    """Whether one replica of a run is measured on a virtual device.

    Without a GPU it is on the processor anyway: runs with and without virtual devices share what is measured then.
    """
    return bool(config.cluster.virtual_devices) and (config.cluster.launcher == "ray" or bool(visible_gpu_ids()))


def work_of(run_directory: RunDirectory) -> Work:
    """The work of one replica of that run, in the micro-batches that it had in the end.

    Of a run on several machines, as many do it at once as are on one of them.
    """
    config, started = run_directory.read_config(), run_directory.read_events("started")[-1]
    if config.batch.accumulate == AUTO:
        parts = read_accumulate(run_directory.attempts_file)
        config = dataclasses.replace(config, batch=dataclasses.replace(config.batch, accumulate=parts))
    return Work(
        config=replica_config(config, is_virtual=needs_virtual_device(config)),
        dataset=run_directory.read_identity().dataset,
        batch_size=config.share_of(started["train_examples"]),
        processes=_replicas_beside(run_directory, config),
    )


def _replicas_beside(run_directory: RunDirectory, config: RunConfig) -> int:
    """How many replicas of the run shared a machine: on the one that had most."""
    file = run_directory.roles_file
    roles = read_json(file)["roles"] if file.is_file() else []
    # A chief that TF_CONFIG names computes as worker 0 does, but not that of parameter servers.
    computing = ("chief", "worker") if config.is_synchronous else ("worker",)
    hosts = Counter(role["host"] for role in roles if role["role"] in computing)
    return max(hosts.values()) * config.cluster.replicas if hosts else config.replicas


def measure_replicas(run_directories: Iterable[RunDirectory], folder: Path, *, log: Log) -> None:
    """Write `replica.json` into each run directory that has none; equal work is measured once.

    Work that cannot be measured costs other runs nothing. Whatever ends this call, none of its processes is alive
    afterwards.

    Args:
        run_directories: complete runs.
        folder: for the plan and the logs of the processes.
        log: gets a line per launch.

    Raises:
        RunFailed: when a process fails, naming its log; of several the first, after all others have been measured.
    """
    lacking = (directory for directory in run_directories if not directory.replica_file.is_file())
    wanted = [(directory, work_of(directory)) for directory in lacking]
    launches = [
        (folder / f"{processes}{'-virtual' * is_virtual}{'-deterministic' * is_deterministic}", works)
        for (processes, is_virtual, is_deterministic, _), works in _launches(wanted).items()
    ]
    failures = list[RunFailed]()
    while launches:
        place, works = launches.pop(0)
        processes = works[0].processes
        log(f"explain: one replica's work, alone{f' and {processes} at once' if processes > 1 else ''}")
        try:
            _launch(works, place)
        except RunFailed as error:
            if isinstance(error, JobFailed) and len(works) > 1:
                # Each by itself: in a process of its own it also has all of the memory.
                launches += [(place / work.key, [work]) for work in works if not _result(place, work).is_file()]
            else:
                failures.append(error)
        for directory, work in wanted:
            if (result := _result(place, work)).is_file():
                ReplicaProbes.read(result).write(directory.replica_file)
    if failures:
        raise failures[0]


def _launches(wanted: Iterable[tuple[RunDirectory, Work]]) -> dict[tuple[int, bool, bool, str], list[Work]]:
    """The distinct works, by how many replicas run at once, whether virtual, whether deterministic, and by launcher.

    The fewest come first. Processes share the cores of a machine as the roles did: so each number has its own launch.
    Devices and determinism are set once in the life of a process: so each kind of them has its own launch, too.
    """
    launches: dict[tuple[int, bool, bool, str], list[Work]] = {}
    for work in {work.key: work for _, work in wanted}.values():
        launch = work.processes, work.is_virtual, work.config.deterministic, work.config.cluster.launcher
        launches.setdefault(launch, []).append(work)
    return dict(sorted(launches.items()))


def _launch(works: Sequence[Work], folder: Path) -> None:
    """Measure all works alone, then at once: TensorFlow keeps the memory of a GPU until its process ends."""
    shutil.rmtree(folder, ignore_errors=True)
    processes, is_virtual = works[0].processes, works[0].is_virtual
    plan = [
        {"key": w.key, "config": to_dict(w.config), "dataset": w.dataset, "batch_size": w.batch_size} for w in works
    ]
    jobs = [
        Job(
            function="probe",
            what="a probe of one replica",
            folder=folder / str(index),
            log=folder / f"{index}.log",
            arguments={"index": index, "works": plan, "processes": processes},
            folders=[folder],
            datasets=sorted({Path(work.dataset) for work in works}),
            # A GPU of its own, or the processor where there is none for it.
            gpus=range(0) if is_virtual else range(max(index - 1, 0), max(index, 1)),
            at_once=processes if index else 1,
            timeout_seconds=ALLOWANCE_SECONDS * len(works),
        )
        # Number 0 measures alone, with the whole machine; the others at once, each with its share of it.
        for index in range(processes + 1 if processes > 1 else 1)
    ]
    for group in filter(None, (jobs[:1], jobs[1:])):
        try:
            # A machine with room for all of them, both times.
            run_together(launcher_of_jobs(works[0].config).place_jobs(jobs), [(ALONE, job) for job in group])
        except InputError as error:  # the run that it is about has trained
            log = group[0].log_of(ALONE)
            raise JobFailed(group[0].what, f"failed: {error}", log, WRONG_INPUT) from error


def _result(folder: Path, work: Work) -> Path:
    return folder / RESULTS / f"{work.key}.json"
