"""Processes with one core each: `python -m benchmarks.variants.workers KIND --network NETWORK [--workers N]`.

    product      the product's multi_worker role
    exact        the same with `cluster.sum: exact`
    independent  the product's engine in each, none knowing of the others

All time each block at once, after all have warmed up; more processes than cores share them. Prints the examples per
second of all together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial

from benchmarks.variants.turns import Turns, add_option, relay
from benchmarks.variants.work import WORKS, Work
from rampline.config import BatchConfig, ClusterConfig, ModelConfig, RunConfig
from rampline.jobs.roles import local_tasks, role_environment

KINDS = ("product", "exact", "independent")
PROCESSES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--network", choices=WORKS, required=True)
    parser.add_argument("--workers", type=int, default=PROCESSES)
    add_option(parser)
    options = parser.parse_args()
    # Made before several processes need it at once.
    WORKS[options.network].open_dataset()
    processes = start_side_by_side(options.kind, options.network, options.workers)
    relay(processes, Turns(options), partial(of_all, options.kind))


def of_all(kind: str, figures: list[dict[str, float]]) -> dict[str, float]:
    """A worker of a cluster counts the examples of all."""
    rates = [each["examples_per_second"] for each in figures]
    rate = sum(rates) if kind == "independent" else rates[0]
    return {"examples_per_second": rate, "peak_mib": max(each["peak_mib"] for each in figures)}


def start_side_by_side(kind: str, network: str, workers: int) -> list[subprocess.Popen[str]]:
    """A process on each core, one after the other."""
    config = multi_worker_config(kind, WORKS[network], workers)
    cores = sorted(os.sched_getaffinity(0))
    started = []
    for index, task in enumerate(local_tasks(config)):
        environment = {**os.environ, **role_environment(task, config), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["RAMPLINE_BENCH_CORE"] = str(cores[index % len(cores)])
        command = [sys.executable, "-m", "benchmarks.variants.one_worker", kind, network, str(workers)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
    return started


def multi_worker_config(kind: str, work: Work, workers: int) -> RunConfig:
    """A run with the product's defaults and as large a batch for each worker as one process has."""
    return RunConfig(
        strategy="multi_worker",
        model=ModelConfig(name=work.model),
        batch=BatchConfig(size=work.batch_size, per="replica"),
        cluster=ClusterConfig(workers=workers, sum="exact" if kind == "exact" else "fast"),
    )


if __name__ == "__main__":
    main()
