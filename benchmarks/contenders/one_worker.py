"""One of the processes of `benchmarks.contenders.workers`, on the core that RAMPLINE_BENCH_CORE names."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable

from benchmarks.contenders.turns import Turns
from benchmarks.contenders.work import WORKS, Work, time_block


def main() -> None:
    # Before TensorFlow makes its threads.
    os.sched_setaffinity(0, {int(os.environ["RAMPLINE_BENCH_CORE"])})
    kind, network = sys.argv[1:]
    work = WORKS[network].of_a_pair()
    run, turns = make_run_of(kind, work), Turns()
    run(work.steps)
    for _ in turns:
        turns.tell(time_block(run, work))
    turns.end()


def make_run_of(kind: str, work: Work) -> Callable[[int], float]:
    """A function that makes so many steps and returns examples per second."""
    if kind == "plain":
        from benchmarks.contenders.plain_multi_worker import make_plain_run

        return make_plain_run(work)
    from benchmarks.contenders.product_loop import loop_config, make_role_engine, make_run
    from benchmarks.contenders.workers import APART, multi_worker_config
    from rampline.jobs.tf_config import ALONE, parse_tf_config

    if kind in APART:
        del os.environ["TF_CONFIG"]
        run = make_run(make_role_engine(loop_config(work, 1), work, ALONE))
        return run if kind == "independent" else keep_in_step(run, work)
    config = multi_worker_config(work)
    return make_run(make_role_engine(config, work, parse_tf_config(os.environ["TF_CONFIG"], config)))


def keep_in_step(run: Callable[[int], float], work: Work) -> Callable[[int], float]:
    """The same steps, each in a call of its own, after which this process waits for the other one."""
    other = socket.socket(fileno=int(os.environ["RAMPLINE_BENCH_OTHER"]))

    def run_in_step(steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            run(1)
            other.sendall(b".")
            if not other.recv(1):
                raise RuntimeError("the other process is gone")
        return steps * work.batch_size / (time.perf_counter() - started)

    return run_in_step


if __name__ == "__main__":
    main()
