"""What a study takes beyond the training of its runs: `python -m benchmarks.variants.study`.

`rampline run digits` with one run, three times in a RAMPLINE_HOME that begins empty: a first time, which makes the
databases and prepares the data, then in two lengths. Everything counts that the command does before, beside and after
the run's own wall time: Prefect and MLflow, the evaluation, the probes of `rampline explain`, the comparison.

Prints first_seconds (of the first), fixed_seconds (of the short one, in the home that has been used) and epoch_share:
how much longer what follows the run takes in the long one, per second by which its run is longer. What comes before a
run is left out of that: it does not know how long the run will be.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.datasets import bench_folder
from benchmarks.variants.turns import print_figures
from rampline.files import read_json
from rampline.record.events import EventReader
from rampline.record.run_directory import RunDirectory

SHORT, LONG = 2, 200


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Wall seconds of a command: the run itself, all the rest, and the part of the rest that follows the run."""

    run: float
    rest: float
    after: float


def main() -> None:
    bench_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench_folder()) as home:
        first, short, long = [measure_study(epochs, Path(home)) for epochs in (SHORT, SHORT, LONG)]
    share = (long.after - short.after) / (long.run - short.run)
    parts = {"short": dataclasses.asdict(short), "long": dataclasses.asdict(long)}
    print_figures({"first_seconds": first.rest, "fixed_seconds": short.rest, "epoch_share": share, **parts})


def measure_study(epochs: int, home: Path) -> Timing:
    """Run the command to its end."""
    program = Path(sys.executable).with_name("rampline")
    command = [program, "run", "digits", "--only", "baseline", "--set", f"epochs={epochs}"]
    before = set(home.glob("runs/digits/*"))
    started = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "RAMPLINE_HOME": str(home)}, capture_output=True, text=True)
    seconds, ended = time.perf_counter() - started, time.time()
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        sys.exit(f"rampline run digits: {lines[-1] if lines else done.returncode}")
    (execution,) = set(home.glob("runs/digits/*")) - before
    run = RunDirectory(execution / "baseline")
    run_seconds = read_json(run.result_file)["wall_seconds"]
    (run_ended,) = [event["time"] for event in EventReader(run.attempts_file).read() if event["event"] == "ended"]
    timing = Timing(run=run_seconds, rest=seconds - run_seconds, after=ended - run_ended)
    print(json.dumps({"epochs": epochs, **dataclasses.asdict(timing)}), file=sys.stderr)
    return timing


if __name__ == "__main__":
    main()
