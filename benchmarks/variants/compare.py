"""`rampline compare` in a store with many runs: `python -m benchmarks.variants.compare --runs 5000`.

The first execution is a real one of `digits`. The others are copies of its rows with ids and times of their own, made
in SQL: to train or to log thousands of runs would take hours.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from benchmarks.variants.turns import print_figures

COPIED = ("params", "tags", "metrics", "latest_metrics")
HOUR_MILLISECONDS = 3_600_000
REPEATS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "RAMPLINE_HOME": folder}
        rampline("run", "digits", "--set", "epochs=12", "--set", "parity.steps=0", environment=environment)
        database = Path(folder) / "mlflow.db"
        multiply(database, options.runs)
        seconds = [rampline("compare", "digits", environment=environment) for _ in range(REPEATS)]
        size = database.stat().st_size / 2**20
    print_figures({"seconds": statistics.median(seconds), "database_mib": size})


def rampline(*arguments: str, environment: Mapping[str, str]) -> float:
    """Wall seconds of a command."""
    started = time.perf_counter()
    program = Path(sys.executable).with_name("rampline")
    subprocess.run([program, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def multiply(file: Path, runs: int) -> None:
    """Copy the one execution that the store has until there are so many runs, parents counted among them."""
    with sqlite3.connect(file) as database:
        ids = [row[0] for row in database.execute("SELECT run_uuid FROM runs")]
        parent = "SELECT run_uuid FROM tags WHERE key = 'rampline.kind' AND value = 'study'"
        (study,) = next(iter(database.execute(parent)))
        for number in range(1, runs // len(ids)):
            copy(database, {run_id: uuid.uuid4().hex for run_id in ids}, study, number)
        database.execute("ANALYZE")


def copy(database: sqlite3.Connection, new: Mapping[str, str], study: str, hours: int) -> None:
    """One execution more, so many hours earlier.

    Args:
        new: ids of its runs, by those of the runs that are copied.
        study: id of the run that is the parent of the others.
    """
    _copy_rows(database, "runs", new, {"start_time": f"start_time - {hours * HOUR_MILLISECONDS}"})
    for table in COPIED:
        _copy_rows(database, table, new, {})
    values = ",".join(f"'{run_id}'" for run_id in new.values())
    for key, value in (("rampline.execution", f"past-{hours:05d}"), ("mlflow.parentRunId", new[study])):
        database.execute(f"UPDATE tags SET value = ? WHERE key = ? AND run_uuid IN ({values})", (value, key))


def _copy_rows(database: sqlite3.Connection, table: str, new: Mapping[str, str], changed: Mapping[str, str]) -> None:
    names = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
    values = ["?" if name == "run_uuid" else changed.get(name, name) for name in names]
    statement = f"INSERT INTO {table} ({','.join(names)}) SELECT {','.join(values)} FROM {table} WHERE run_uuid = ?"
    database.executemany(statement, [(made, old) for old, made in new.items()])


if __name__ == "__main__":
    main()
