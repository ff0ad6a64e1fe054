"""PyTorch's DistributedDataParallel: `python -m benchmarks.contenders.pytorch --network convnet|mobilenet`.

Two processes over gloo, one core each. PyTorch is in an environment of its own, whose interpreter is
RAMPLINE_BENCH_PYTORCH or benchmarks/.pytorch-venv/bin/python; without it nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.contenders.work import WORKS
from rampline.cluster.roles import free_ports

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
    options = parser.parse_args()
    python = Path(os.environ.get("RAMPLINE_BENCH_PYTORCH") or PYTHON)
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode if python.is_file() else True:
        print(json.dumps({"not_measured": f"no PyTorch: {INSTALL}"}))
        return
    work, port = WORKS[options.network], free_ports(1)[0]
    settings = [port, work.batch_size, work.steps, work.timed_blocks]
    processes = [
        subprocess.Popen(
            [python, FOLDER / "pytorch_worker.py", options.network, *map(str, [rank, PROCESSES, *settings])],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate()[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        sys.exit("a process of PyTorch failed")
    print(outputs[0].splitlines()[-1])


if __name__ == "__main__":
    main()
