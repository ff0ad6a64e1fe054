"""A study as a batch job of Slurm: the script that runs it, and handing that in."""

from __future__ import annotations

import os
import shlex
import subprocess
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rampline.config import RunConfig
from rampline.errors import ClusterConfigError, RunFailed
from rampline.files import write_text
from rampline.jobs.launcher import Node
from rampline.jobs.roles import role_counts
from rampline.jobs.slurm import SLURM, nodes_of
from rampline.record.home import Below

# Slurm lets such a job go on, too, where the lost node is that of its command: the first that is left queues it again.
WATCH = """
srun --overlap --no-kill --relative=1 --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) \\
    --cpu-bind=none --job-name=rampline-watch bash -c '
while sleep 30; do
    left=$(scontrol show hostnames "$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%N)")
    grep --quiet --line-regexp "$0" <<<"$left" && continue
    [ "$(head --lines=1 <<<"$left")" = "$SLURMD_NODENAME" ] && scontrol requeue "$SLURM_JOB_ID"
done' "$SLURMD_NODENAME" &
"""


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """What a study needs of Slurm, and the command that runs it there.

    Attributes:
        folder: of the execution; gets the script and what the job prints.
        command: with the words of the shell.
        nodes: one per worker, and the spares.
        can_lose_nodes: whether it goes on without a node that is lost; else Slurm queues it again.
        cores, gpus: per node.
        options: of sbatch, over these.
    """

    study: str
    folder: Path
    command: Sequence[str]
    environment: dict[str, str]
    nodes: int
    can_lose_nodes: bool
    cores: int
    gpus: int
    options: Sequence[str]

    script = Below("job.sh", of="folder")
    log = Below("job.log", of="folder")  # what the job prints, over all its starts

    def text(self) -> str:
        """The script."""
        options = [
            f"--job-name={self.study}",
            f"--nodes={self.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={self.cores}",
            *([f"--gpus-per-node={self.gpus}"] if self.gpus else []),
            *(["--no-kill"] if self.can_lose_nodes else []),
            "--requeue",
            "--signal=B:TERM@60",  # a checkpoint before the time limit, and again
            f"--chdir={Path.cwd()}",
            f"--output={self.log}",
            "--open-mode=append",
        ]
        lines = ["#!/bin/bash", *(f"#SBATCH {shlex.quote(option)}" for option in options)]
        # One line, because an option may be two words. Of an option that is there twice the last one holds.
        lines += [f"#SBATCH {shlex.join(self.options)}", ""] if self.options else [""]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in self.environment.items()]
        lines += [WATCH] if self.can_lose_nodes else []
        return "\n".join([*lines, f"exec {shlex.join(self.command)}", ""])

    def submit(self) -> str:
        """Write the script and hand it in; returns the number of the job.

        Raises:
            RunFailed: what sbatch says against it.
        """
        write_text(self.script, self.text())
        try:
            done = subprocess.run(
                # The options once more: variables such as SBATCH_PARTITION hold over those in the script.
                ["sbatch", "--parsable", *self.options, str(self.script)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise RunFailed("sbatch is not found: a study is submitted where Slurm's commands are") from error
        if done.returncode:
            raise RunFailed(f"sbatch refuses {self.script}: {(done.stderr.strip() or 'no reason').splitlines()[-1]}")
        return done.stdout.strip().partition(";")[0]


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the largest run of a study needs: nodes, and cores and GPUs on each."""

    nodes: int
    cores: int
    gpus: int

    @classmethod
    def of(cls, configs: Sequence[RunConfig], options: Sequence[str]) -> Resources:
        """As the partitions have them that `options` of sbatch name, or SBATCH_PARTITION, or the default one.

        All cores of a node; where it has more GPUs than are needed, as large a part of them.

        Raises:
            ClusterConfigError: when there is no such partition, or its nodes have too few GPUs.
        """
        offered = _nodes(options)
        nodes = max(map(nodes_of, configs))
        if not any(node.gpus for node in offered):
            return cls(nodes=nodes, cores=min(node.cores for node in offered), gpus=0)
        gpus = max(map(_gpus_of, configs))
        enough = [node for node in offered if node.gpus >= max(1, gpus)]
        if not enough:
            most = max(node.gpus for node in offered)
            raise ClusterConfigError(f"cluster.replicas={gpus} needs {gpus} GPUs on a node: there are {most} at most")
        cores = min(node.cores if gpus == 0 else node.cores * gpus // node.gpus for node in enough)
        return cls(nodes=nodes, cores=max(1, cores), gpus=gpus)


def _gpus_of(config: RunConfig) -> int:
    is_virtual = config.cluster.virtual_devices not in ("auto", 0)
    return 0 if is_virtual else 1 if "ps" in role_counts(config) else config.cluster.replicas


def _nodes(options: Sequence[str]) -> list[Node]:
    """The nodes that a job with these options may get."""
    named, nodes = named_partitions(options), SLURM.nodes()
    partitions = sorted({group for node in nodes for group in node.groups})
    chosen = {name for name in partitions if (name.rstrip("*") in named if named else name.endswith("*"))}
    missing = sorted(named.difference(name.rstrip("*") for name in chosen))
    if missing or not chosen:
        known = ", ".join(name.rstrip("*") for name in partitions) or "none"
        which = f"partition {', '.join(missing)}" if missing else "default partition"
        raise ClusterConfigError(f"Slurm has no {which} (-- --partition=NAME): it has {known}")
    return [node for node in nodes if chosen.intersection(node.groups)]


def named_partitions(options: Sequence[str]) -> set[str]:
    """Those that the options of sbatch name, or else SBATCH_PARTITION; none for the default one."""
    parser = ArgumentParser(add_help=False)
    parser.add_argument("-p", "--partition", nargs="?")
    named = parser.parse_known_args(options)[0].partition or os.environ.get("SBATCH_PARTITION", "")
    return set(filter(None, named.split(",")))
