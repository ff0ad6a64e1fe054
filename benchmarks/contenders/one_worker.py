"""One of the processes of `benchmarks.contenders.workers`, on the core that RAMPLINE_BENCH_CORE names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from benchmarks.contenders.work import WORKS, Work, measure_rate


def main() -> None:
    # Before TensorFlow makes its threads.
    os.sched_setaffinity(0, {int(os.environ["RAMPLINE_BENCH_CORE"])})
    kind, network = sys.argv[1:]
    work = WORKS[network]
    figures = measure_rate(make_run_of(kind, work), work, begin=lambda: wait_for_others("ready"))
    wait_for_others(json.dumps(figures))
    os._exit(0)


def make_run_of(kind: str, work: Work) -> Callable[[int], float]:
    """A function that makes so many steps and returns examples per second."""
    if kind == "plain":
        from benchmarks.contenders.plain_multi_worker import make_plain_run

        return make_plain_run(work)
    from benchmarks.contenders.product_loop import loop_config, make_role_engine, make_run
    from benchmarks.contenders.workers import multi_worker_config
    from rampline.cluster.tf_config import ALONE, parse_tf_config

    if kind == "independent":
        del os.environ["TF_CONFIG"]
        return make_run(make_role_engine(loop_config(work, 1), work, ALONE))
    config = multi_worker_config(work)
    return make_run(make_role_engine(config, work, parse_tf_config(os.environ["TF_CONFIG"], config)))


def wait_for_others(told: str) -> None:
    """Tell how far this process is, and wait until the others are as far."""
    print(told, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
