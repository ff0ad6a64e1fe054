"""What a study takes beyond the training of its runs: `python -m benchmarks.contenders.study`.

`rampline run digits` with one run, in two lengths, each in a new RAMPLINE_HOME. Everything counts that the command does
before, beside and after the run's own wall time: Prefect and MLflow, the preparation of the digits, the evaluation, the
probes of `rampline explain`, the comparison.

Prints fixed_seconds (of the short one) and epoch_share: how much longer the rest of the long one takes, per second by
which its run is longer.
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
    (short_run, short_rest), (long_run, long_rest) = (measure_study(epochs) for epochs in (SHORT, LONG))
    share = (long_rest - short_rest) / (long_run - short_run)
    seconds = {"run_seconds": [short_run, long_run], "rest_seconds": [short_rest, long_rest]}
    print_figures({"fixed_seconds": short_rest, "epoch_share": share, **seconds})


def measure_study(epochs: int) -> tuple[float, float]:
    """Wall seconds of the run itself, and of the command beyond it."""
    program = Path(sys.executable).with_name("rampline")
    bench_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=bench_folder()) as home:
        command = [program, "run", "digits", "--only", "baseline", "--set", f"epochs={epochs}"]
        started = time.perf_counter()
        done = subprocess.run(command, env={**os.environ, "RAMPLINE_HOME": home}, capture_output=True, text=True)
        seconds = time.perf_counter() - started
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines()
            sys.exit(f"rampline run digits: {lines[-1] if lines else done.returncode}")
        result = read_json(next(Path(home).glob("runs/digits/*/baseline/result.json")))
    print(json.dumps({"epochs": epochs, "seconds": seconds, "run": result["wall_seconds"]}), file=sys.stderr)
    return result["wall_seconds"], seconds - result["wall_seconds"]


if __name__ == "__main__":
    main()
