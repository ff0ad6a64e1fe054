"""`rampline compare` and `rampline plan` in a store that holds many runs.

    python -m benchmarks.contenders.mlflow_runs compare --runs=5000 --repeats=3
    python -m benchmarks.contenders.mlflow_runs report --runs=0 --per-execution=200
    python -m benchmarks.contenders.mlflow_runs plan --per-execution=200 --executions=20
    python -m benchmarks.contenders.mlflow_runs fill --runs=5000 --home=FOLDER

The store is that of `benchmarks.contenders.growth_store`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.contenders.growth_store import fill_store


def time_command(home: Path, arguments: Sequence[str], repeats: int) -> dict[str, float]:
    """Wall time of `rampline ARGUMENTS` in fresh processes, median of `repeats`."""
    seconds = []
    environment = {**os.environ, "RAMPLINE_HOME": str(home)}
    for _ in range(repeats):
        began = time.perf_counter()
        command = [sys.executable, "-c", "import sys; from rampline.cli import main; sys.exit(main())", *arguments]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return {"seconds": statistics.median(seconds), "seconds_max": max(seconds)}


def time_report(home_folder: Path, study: str) -> dict[str, float]:
    """CPU seconds of this process, after its imports, for a comparison that is read, printed and written."""
    from rich.console import Console

    from rampline.comparison.report import write_comparison
    from rampline.comparison.runs import read_comparison
    from rampline.comparison.terminal import print_comparison
    from rampline.record.home import Home
    from rampline.tracking.store import open_tracking

    client = open_tracking(Home(root=home_folder))
    times = [time.process_time()]
    comparison = read_comparison(client, study)
    times.append(time.process_time())
    with open(os.devnull, "w") as nowhere:
        print_comparison(comparison, Console(file=nowhere, width=160))
    times.append(time.process_time())
    files = write_comparison(comparison, home_folder / "report")
    times.append(time.process_time())
    read, printed, written = (later - earlier for earlier, later in itertools.pairwise(times))
    size = files.report.stat().st_size / 2**20
    return {"read_seconds": read, "print_seconds": printed, "report_seconds": written, "report_mib": size}


def make_executions(home_folder: Path, runs: int, executions: int) -> Path:
    """A study of that many runs, and folders of earlier executions of it with another batch size; returns its file."""
    from rampline.files import write_json
    from rampline.study import load_study

    grid = {"name": "run-{seed}", "set": {"strategy": "single"}, "over": {"seed": list(range(runs))}}
    content = {"name": "many", "description": "Many runs.", "reference": "run-0", "grid": {"g": grid}}
    file = home_folder / "many.yaml"
    file.write_text(json.dumps(content))
    earlier = load_study(str(file), overrides={"batch.size": "48"})
    for number in range(executions):
        for run in earlier.runs:
            folder = home_folder / "runs" / "many" / f"20250101-{number:06d}" / run.name
            folder.mkdir(parents=True)
            write_json(folder / "config.json", dataclasses.asdict(run.config))
    return file


def main() -> None:
    """Fill a store, and time a command in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("fill", "compare", "report", "plan"))
    parser.add_argument("--runs", type=int, default=5000)
    parser.add_argument("--per-execution", type=int, default=5)
    parser.add_argument("--executions", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--home", type=Path)
    options = parser.parse_args()
    if options.what == "fill":
        fill_store(options.home, options.runs, per_execution=options.per_execution)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(_measure(options, Path(folder))))


def _measure(options: argparse.Namespace, home: Path) -> dict[str, float]:
    if options.what == "plan":
        study = str(make_executions(home, options.per_execution, options.executions))
        return time_command(home, ["plan", study], options.repeats)
    study = fill_store(home, options.runs, per_execution=options.per_execution)
    if options.what == "report":
        return time_report(home, study)
    figures = time_command(home, ["compare", study], options.repeats)
    return {**figures, "database_mib": (home / "mlflow.db").stat().st_size / 2**20}


if __name__ == "__main__":
    main()
