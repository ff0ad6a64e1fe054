"""How long the check of a prepared dataset takes: `python benchmarks/integrity.py [FOLDER]`; writes 4 GB there."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rampline.data import integrity
from rampline.data.dataset import FORMAT_VERSION, PreparedDataset
from rampline.data.storage import SplitWriter
from rampline.files import write_json

SHAPE = (224, 224, 3)
ENCODED_BYTES = 110_000


def make_dataset(directory: Path, storage: str, examples: int) -> PreparedDataset:
    """A prepared dataset of random images, one split."""
    directory.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, SHAPE, dtype=np.uint8)
    with SplitWriter(directory, "train", storage) as writer:
        for _ in range(examples):
            writer.write(label=0, pixels=pixels, encoded=pixels.tobytes()[:ENCODED_BYTES])
    manifest = {
        "format_version": FORMAT_VERSION,
        "source": "random",
        "fingerprint": "",
        "class_names": ["a", "b"],
        "image_shape": SHAPE,
        "splits": {"train": examples},
        "undecodable": 0,
        "storage": storage,
        "files": {},
    }
    write_json(directory / "manifest.json", integrity.seal(manifest))
    return PreparedDataset.open(directory)


def measure(dataset: PreparedDataset, what: str) -> None:
    """Print the time of one check."""
    size = sum(path.stat().st_size for path in dataset.directory.rglob("*") if path.is_file()) / 1e9
    started = time.perf_counter()
    integrity.check_intact(dataset)
    seconds = time.perf_counter() - started
    print(f"{dataset.storage}, {what}: {seconds:.2f} s for {size:.2f} GB, {seconds / size:.2f} s/GB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for storage, examples in (("tensor", 14_000), ("encoded_files", 20_000)):
            dataset = make_dataset(Path(folder) / storage, storage, examples)
            measure(dataset, "first check")
            measure(dataset, "second check")
        integrity.REREAD_BYTES = 0
        measure(dataset, "sizes and times only")
