"""What a study takes beyond the training of its runs: `python -m benchmarks.contenders.study`.

`rampline run digits` with one run, three times in a RAMPLINE_HOME that begins empty: a first time, which makes the
databases and prepares the data, then in two lengths. Everything counts that the command does before, beside and after
the run's own wall time: Prefect and MLflow, the evaluation, the probes of `rampline explain`, the comparison.

Prints first_seconds (of the first), fixed_seconds (of the short one, in the home that has been used) and epoch_share:
how much longer the rest of the long one takes, per second by which its run is longer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.contenders.training import print_figures
from benchmarks.datasets import bench_folder
from rampline.files import read_json

SHORT, LONG = 2, 100


def main() -> None:
    bench_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench_folder()) as home:
        measured = [measure_study(epochs, Path(home)) for epochs in (SHORT, SHORT, LONG)]
    (_, first_rest), (short_run, short_rest), (long_run, long_rest) = measured
    share = (long_rest - short_rest) / (long_run - short_run)
    seconds = {"run_seconds": [short_run, long_run], "rest_seconds": [short_rest, long_rest]}
    print_figures({"first_seconds": first_rest, "fixed_seconds": short_rest, "epoch_share": share, **seconds})


def measure_study(epochs: int, home: Path) -> tuple[float, float]:
    """Wall seconds of the run itself, and of the command beyond it."""
    program = Path(sys.executable).with_name("rampline")
    command = [program, "run", "digits", "--only", "baseline", "--set", f"epochs={epochs}"]
    before = set(home.glob("runs/digits/*"))
    started = time.perf_counter()
    done = subprocess.run(command, env={**os.environ, "RAMPLINE_HOME": str(home)}, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        sys.exit(f"rampline run digits: {lines[-1] if lines else done.returncode}")
    (execution,) = set(home.glob("runs/digits/*")) - before
    run_seconds = read_json(execution / "baseline" / "result.json")["wall_seconds"]
    print(json.dumps({"epochs": epochs, "seconds": seconds, "run": run_seconds}), file=sys.stderr)
    return run_seconds, seconds - run_seconds


if __name__ == "__main__":
    main()
