"""One of the processes of `benchmarks.variants.workers`, on the core that RAMPLINE_BENCH_CORE names."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from benchmarks.variants.turns import Turns
from benchmarks.variants.work import WORKS, Work, time_block


def main() -> None:
    # Before TensorFlow makes its threads.
    os.sched_setaffinity(0, {int(os.environ["RAMPLINE_BENCH_CORE"])})
    kind, network, workers = sys.argv[1:]
    work = WORKS[network].of_a_pair()
    run, turns = make_run_of(kind, work, int(workers)), Turns()
    run(work.steps)
    for _ in turns:
        turns.tell(time_block(run, work))
    turns.end()


def make_run_of(kind: str, work: Work, workers: int) -> Callable[[int], float]:
    """A function that makes so many steps and returns examples per second."""
    from benchmarks.variants.product_loop import loop_config, make_role_engine, make_run
    from benchmarks.variants.workers import multi_worker_config
    from rampline.jobs.tf_config import ALONE, parse_tf_config

    if kind == "independent":
        del os.environ["TF_CONFIG"]
        return make_run(make_role_engine(loop_config(work, 1), work, ALONE))
    config = multi_worker_config(kind, work, workers)
    return make_run(make_role_engine(config, work, parse_tf_config(os.environ["TF_CONFIG"], config)))


if __name__ == "__main__":
    main()
