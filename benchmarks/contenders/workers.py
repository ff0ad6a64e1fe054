"""Two processes with one core each: `python -m benchmarks.contenders.workers KIND --network NETWORK`.

    product      the product's multi_worker role
    independent  the product's engine, twice, neither knowing of the other
    in_step      the same, but each waits for the other after each step, and exchanges nothing
    plain        MultiWorkerMirroredStrategy in a loop written by hand, one call for each step

All are timed at once, after both have warmed up. Prints the examples per second of both together.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from typing import Any

from benchmarks.contenders.training import print_figures
from benchmarks.contenders.work import WORKS, Work
from rampline.cluster.roles import local_tasks, role_environment
from rampline.config import BatchConfig, ClusterConfig, ModelConfig, RunConfig

KINDS = ("product", "independent", "in_step", "plain")
APART = ("independent", "in_step")
PROCESSES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--network", choices=WORKS, required=True)
    options = parser.parse_args()
    # Made before two processes need it at once.
    WORKS[options.network].open_dataset()
    figures = run_side_by_side(options.kind, options.network)
    rates = [each["examples_per_second"] for each in figures]
    # A worker of a cluster counts the examples of all.
    rate = sum(rates) if options.kind in APART else rates[0]
    print_figures({"examples_per_second": rate, "processes": rates, "peak_mib": max(f["peak_mib"] for f in figures)})


def run_side_by_side(kind: str, network: str) -> list[dict[str, Any]]:
    """The figures of each process, which all begin to count when the last of them is ready."""
    config = multi_worker_config(WORKS[network])
    cores = sorted(os.sched_getaffinity(0))
    started = []
    ends = socket.socketpair()
    for index, task in enumerate(local_tasks(config)):
        environment = {**os.environ, **role_environment(task, config), "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["RAMPLINE_BENCH_CORE"] = str(cores[index % len(cores)])
        environment["RAMPLINE_BENCH_OTHER"] = str(ends[index].fileno())
        command = [sys.executable, "-m", "benchmarks.contenders.one_worker", kind, network]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, pass_fds=[ends[index].fileno()], **pipes))
    for end in ends:
        end.close()
    try:
        for process in started:
            while process.stdout.readline().strip() != "ready":
                if process.poll() is not None:
                    sys.exit(f"{kind}: a process ended with {process.returncode}")
        _tell(started, "go")
        figures = [json.loads(process.stdout.readline() or '{"failed": true}') for process in started]
        if any("failed" in each for each in figures):
            sys.exit(f"{kind}: a process ended without its figures")
        # One that left earlier would end the collectives of the other.
        _tell(started, "leave")
        return figures
    finally:
        for process in started:
            process.kill()
            process.wait()


def _tell(processes: list[subprocess.Popen[str]], word: str) -> None:
    for process in processes:
        process.stdin.write(f"{word}\n")
        process.stdin.flush()


def multi_worker_config(work: Work) -> RunConfig:
    """A run with the product's defaults and as large a batch for each worker as one process has."""
    return RunConfig(
        strategy="multi_worker",
        model=ModelConfig(name=work.model),
        batch=BatchConfig(size=work.batch_size, per="replica"),
        cluster=ClusterConfig(workers=PROCESSES),
    )


if __name__ == "__main__":
    main()
