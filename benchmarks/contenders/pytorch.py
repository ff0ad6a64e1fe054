"""PyTorch's DistributedDataParallel: `python -m benchmarks.contenders.pytorch --network convnet|mobilenet`.

Two processes over gloo, one core each. PyTorch is in an environment of its own, whose interpreter is
RAMPLINE_BENCH_PYTORCH or benchmarks/.pytorch-venv/bin/python; without it nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from benchmarks.contenders.turns import Turns, add_option, relay
from benchmarks.contenders.work import WORKS
from rampline.jobs.roles import free_ports

FOLDER = Path(__file__).parent
PYTHON = FOLDER.parent / ".pytorch-venv" / "bin" / "python"
INSTALL = (
    "python -m venv benchmarks/.pytorch-venv && "
    "benchmarks/.pytorch-venv/bin/pip install -r benchmarks/requirements-pytorch.txt"
)
PROCESSES = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=("convnet", "mobilenet"), required=True)
    add_option(parser)
    options = parser.parse_args()
    python = Path(os.environ.get("RAMPLINE_BENCH_PYTORCH") or PYTHON)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode if python.is_file() else True:
        print(json.dumps({"not_measured": f"no PyTorch: {INSTALL}"}))
        return
    work, port = WORKS[options.network].of_a_pair(), free_ports(1)[0]
    settings = [port, work.batch_size, work.steps, work.lead_in]
    processes = [
        subprocess.Popen(
            [python, FOLDER / "pytorch_worker.py", options.network, *map(str, [rank, PROCESSES, *settings])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    # Each counts the examples of both.
    relay(processes, Turns(options), merge=lambda figures: figures[0])


if __name__ == "__main__":
    main()
