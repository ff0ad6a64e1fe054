"""How good forecasts are: `python -m benchmarks.forecast [--only RUN]...` forecasts 45 set-ups, then runs them.

Each network's are forecast and run before the next one's, as one would do it. Prints a row per run: images/s and wall
time as forecast, as they came out, and whether they lie in their interval; then the median error and the share inside.
Takes a quarter of an hour on two cores, which must do nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rampline.files import read_json
from rampline.forecast.forecast import Forecast
from rampline.record.run_directory import RunDirectory
from rampline.study.content import load_study

STUDY = Path(__file__).with_suffix(".yaml")
MOST_ERROR, LEAST_INSIDE = 0.10, 0.90


def main() -> int:
    """0, or 1 where forecasts are not as good as is claimed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="RUN")
    study = load_study(str(STUDY), only=parser.parse_args().only)
    with tempfile.TemporaryDirectory(prefix="rampline-forecast-") as home:
        for _, runs in itertools.groupby(study.runs, key=lambda run: run.config.model.name):
            chosen = [part for run in runs for part in ("--only", run.name)]
            for command in ("forecast", "run"):
                program = [Path(sys.executable).with_name("rampline"), command, STUDY, *chosen]
                subprocess.run(program, env={**os.environ, "RAMPLINE_HOME": home}, check=True)
        directories = [RunDirectory(file.parent) for file in Path(home).glob("runs/*/*/*/result.json")]
        return tell(sorted(directories, key=lambda directory: directory.path.name))


def tell(directories: list[RunDirectory]) -> int:
    """Print the rows and what they come to."""
    print(
        "| run | images/s | forecast | error | wall s | forecast | error | images/s within | wall s within |\n"
        "|---|---|---|---|---|---|---|---|---|"
    )
    errors, inside = [], []
    for directory in directories:
        forecast, wall = Forecast.read(directory.forecast_file), read_json(directory.result_file)["wall_seconds"]
        speeds = [event["metrics"]["images_per_second"] for event in directory.read_events("epoch")]
        pairs = (statistics.median(speeds[1:]), forecast.images_per_second), (wall, forecast.wall_seconds)
        errors.append([forecast_ / was - 1 for was, forecast_ in pairs])
        factors = forecast.factor, forecast.wall_factor
        inside.append([max(was / told, told / was) <= each for (was, told), each in zip(pairs, factors, strict=True)])
        cells = (
            f"{was:,.4g} | {told:,.4g} | {e:+.0%}{'' if i else ' (!)'}"
            for (was, told), e, i in zip(pairs, errors[-1], inside[-1], strict=True)
        )
        print(f"| {directory.path.name} | {' | '.join(cells)} | {' | '.join(f'{each - 1:.0%}' for each in factors)} |")
    status = 0
    for number, what in enumerate(("images/s", "wall time")):
        error, share = statistics.median(abs(e[number]) for e in errors), statistics.mean(i[number] for i in inside)
        print(f"{what}: median error {error:.1%}, {share:.0%} of {len(errors)} inside the 90 % interval")
        status |= error > MOST_ERROR or share < LEAST_INSIDE
    return status


if __name__ == "__main__":
    sys.exit(main())
