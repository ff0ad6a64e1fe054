"""Seconds to the end of a command's first training step: `python -m benchmarks.variants.startup rampline|bare`.

`rampline` is `rampline run digits --only baseline`, its data prepared before; `bare` a script with the same network and
images. Both are ended after that step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.datasets import bench_folder
from benchmarks.process import end_group
from benchmarks.variants.turns import print_figures

LONGEST_SECONDS = 300
POLL_SECONDS = 0.01
RUN = "baseline"
# One step per call, as the script has it: else the first call that is heard of is one of many steps.
COMMAND = ("rampline", "run", "digits", "--only", RUN, "--set", "steps_per_call=1", "--set", "explain.steps=0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rampline", "bare"))
    print_figures(_time_rampline() if parser.parse_args().what == "rampline" else _time_bare())


def _time_bare() -> dict[str, float]:
    started = time.time()
    script = [sys.executable, "-m", "benchmarks.variants.startup_bare"]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            seconds = time.time() - started
        finally:
            end_group(process)
    if line.strip() != "step":
        raise RuntimeError("the script made no step")
    return {"seconds": seconds}


def _time_rampline() -> dict[str, float]:
    home = bench_folder() / "startup"
    if not (home / "data").is_dir():
        # Prepares the data and makes the databases.
        _command(home, "--set", "epochs=1").wait(LONGEST_SECONDS)
    known = set(home.glob("runs/digits/*"))
    started = time.time()
    process = _command(home)
    try:
        (execution,) = _wait_for(lambda: set(home.glob("runs/digits/*")) - known)
        told = execution / RUN / "events.jsonl"
        (step,) = _wait_for(lambda: [event["time"] for event in _read(told) if event["event"] == "progress"][:1])
        parts = {event["event"]: event["time"] for event in [*_read(execution / RUN / "attempts.jsonl"), *_read(told)]}
    finally:
        end_group(process)
    return {
        "seconds": step - started,
        "to_launch_seconds": parts["attempt"] - started,
        "to_strategy_and_model_seconds": parts["started"] - parts["attempt"],
        "to_first_step_seconds": step - parts["started"],
    }


def _command(home: Path, *more: str) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
    program = Path(sys.executable).with_name(COMMAND[0])
    return subprocess.Popen(
        [program, *COMMAND[1:], *more],
        env=kept | {"RAMPLINE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_for(found):
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(POLL_SECONDS)
    raise TimeoutError("the command made no step")


def _read(path: Path) -> list[dict]:
    """Its lines, as far as they are complete."""
    lines = path.read_text().split("\n")[:-1] if path.is_file() else []
    return [json.loads(line) for line in lines]


if __name__ == "__main__":
    main()
