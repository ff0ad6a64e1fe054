"""How long the check of a prepared dataset takes: `python -m benchmarks.integrity [FOLDER]`; writes 4 GB there."""

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.datasets import make_dataset
from rampline.data import integrity
from rampline.data.dataset import PreparedDataset

SHAPE = (224, 224, 3)
ENCODED_BYTES = 110_000


def measure(dataset: PreparedDataset, what: str) -> None:
    """Print the time of one check."""
    size = sum(path.stat().st_size for path in dataset.directory.rglob("*") if path.is_file()) / 1e9
    started = time.perf_counter()
    integrity.check_intact(dataset)
    seconds = time.perf_counter() - started
    print(f"{dataset.storage}, {what}: {seconds:.2f} s for {size:.2f} GB, {seconds / size:.2f} s/GB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for storage, examples, size in (("tensor", 14_000, 0), ("encoded_files", 20_000, ENCODED_BYTES)):
            splits = {"train": examples}
            path = Path(folder) / storage
            dataset = make_dataset(path, shape=SHAPE, splits=splits, storage=storage, encoded_bytes=size)
            measure(dataset, "first check")
            measure(dataset, "second check")
        integrity.REREAD_BYTES = 0
        measure(dataset, "sizes and times only")
