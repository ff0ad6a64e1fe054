"""Steps of MobileNetV2 with a heartbeat beside them and without, in turn: `python -m benchmarks.contenders.heartbeat`.

Prints step_ratio: the time of a step with one over that of a step without.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.contenders.product_loop import loop_config, make_role_engine, make_run
from benchmarks.contenders.turns import print_figures
from benchmarks.contenders.work import WORKS
from rampline.jobs.heartbeat import Heartbeat
from rampline.jobs.tf_config import ALONE

ROUNDS = 5


def main() -> None:
    work = WORKS["mobilenet"]
    run = make_run(make_role_engine(loop_config(work, 1), work, ALONE))
    run(work.steps)
    ratios = []
    with TemporaryDirectory() as folder:
        for turn in range(ROUNDS):
            without = run(work.steps)
            beat = Heartbeat(Path(folder) / str(turn), timeout_seconds=60, on_overdue=print)
            beat.start()
            beat.advance("train")
            # Earlier ones beat on: with each turn the cost of one more is in both figures.
            ratios.append(without / run(work.steps))
        print_figures({"step_ratio": statistics.median(ratios), "ratios": ratios})


if __name__ == "__main__":
    main()
