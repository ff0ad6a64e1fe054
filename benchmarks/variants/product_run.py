"""A whole run of the product: `python -m benchmarks.variants.product_run STRATEGY --network NETWORK`.

Its roles are started as `rampline run` starts them. Prints examples per second, the median over the epochs after the
first, and the most memory that one role had.
"""

from __future__ import annotations

import argparse
import resource
import signal
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.datasets import bench_folder
from benchmarks.variants.turns import print_figures
from benchmarks.variants.work import WORKS, Work
from rampline.config import BatchConfig, ClusterConfig, ModelConfig, RunConfig
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory, RunIdentity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategy", choices=("single", "parameter_server"))
    parser.add_argument("--network", choices=WORKS, required=True)
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work = WORKS[options.network]
    dataset = work.open_dataset()
    with tempfile.TemporaryDirectory(dir=bench_folder()) as folder:
        directory = RunDirectory(Path(folder) / "run")
        identity = RunIdentity(study="benchmark", name="run", dataset=str(dataset.directory))
        directory.create(run_config(work, options.strategy, options.epochs), identity)
        supervise(directory, on_event=lambda event: None, log=lambda line: print(line, file=sys.stderr))
        epochs = [event["metrics"] for event in directory.read_events() if event["event"] == "epoch"]
    # Of the largest child that was waited for, in KiB.
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    rates = [metrics["images_per_second"] for metrics in epochs[1:]]
    print_figures({"examples_per_second": statistics.median(rates), "epochs": rates, "peak_mib": peak_mib})


def run_config(work: Work, strategy: str, epochs: int) -> RunConfig:
    """A run with the product's defaults; the batch is one worker's."""
    is_alone = strategy == "single"
    return RunConfig(
        strategy=strategy,
        epochs=epochs,
        model=ModelConfig(name=work.model),
        batch=BatchConfig(size=work.batch_size),
        cluster=ClusterConfig(workers=1 if is_alone else 2, parameter_servers=0 if is_alone else 1),
    )


if __name__ == "__main__":
    main()
