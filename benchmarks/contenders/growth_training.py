"""Throughput of a whole `rampline run` of one run of the study `digits`, with other settings.

python -m benchmarks.contenders.growth_training baseline --set data.image_size=112
python -m benchmarks.contenders.growth_training multi-worker --set cluster.workers=4
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EPOCHS = 3


def main() -> None:
    """Measure one point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--set", action="append", default=[], dest="settings")
    options = parser.parse_args()
    settings = [f"epochs={EPOCHS}", "model.weights=none", *options.settings]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "import sys; from rampline.cli import main; sys.exit(main())", "run", "digits"]
        command += ["--only", options.run, *(part for setting in settings for part in ("--set", setting))]
        began = time.perf_counter()
        environment = {**os.environ, "RAMPLINE_HOME": folder}
        subprocess.run(command, check=True, stdout=sys.stderr, env=environment)
        seconds = time.perf_counter() - began
        (events,) = Path(folder, "runs", "digits").glob(f"*/{options.run}/events.jsonl")
        epochs = [json.loads(line) for line in events.read_text().splitlines()]
        rates = [event["metrics"]["images_per_second"] for event in epochs if event["event"] == "epoch"]
    print(json.dumps({"images_per_second": statistics.median(rates[1:]), "seconds": seconds}))


if __name__ == "__main__":
    main()
