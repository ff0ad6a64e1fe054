"""Memory and time of preparation, of the integrity check and of a role's reading, for a number of images.

    python -m benchmarks.contenders.growth_images prepare --images=10000
    python -m benchmarks.contenders.growth_images check --images=1000000
    python -m benchmarks.contenders.growth_images read --images=1000000 --storage=tensor

`prepare` makes a folder of different PNG files of 8 x 8 pixels and prepares it in encoded storage with the product's
process. `check` and `read` have a store whose example files are hard links to 64 different ones: entries of folders, as
many as there are images, without their blocks. Peak memory is the resident set of the process that does the work;
`grown_mib` that beyond what it has with 1,000 images in the same process, or beyond its imports.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import struct
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from rampline.data.dataset import DIGEST_BYTES, EXAMPLES_PER_FOLDER, FORMAT_VERSION, PreparedDataset, example_file
from rampline.data.storage import SplitWriter, digest

SIDE, CLASSES, LINKED = 8, 10, 64
MEBIBYTE = 2**20
BATCH, BATCHES = 64, 50


def write_png(pixels: bytes) -> bytes:
    """A grey PNG of `SIDE` x `SIDE` pixels, about 130 bytes."""
    rows = b"".join(b"\0" + pixels[start : start + SIDE] for start in range(0, SIDE * SIDE, SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def make_folder(folder: Path, images: int) -> None:
    """A folder per class with different images."""
    random = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / f"class-{label}").mkdir(parents=True)
    for index in range(images):
        file = folder / f"class-{index % CLASSES}" / f"{index:08d}.png"
        file.write_bytes(write_png(random.bytes(SIDE * SIDE)))


def make_store(directory: Path, images: int, storage: str) -> PreparedDataset:
    """A prepared dataset whose validation and test splits are small, and whose train split has all the others."""
    from rampline.data.integrity import seal
    from rampline.data.quality import ReportRow, make_report, write_report
    from rampline.files import write_json

    splits = {"train": images - 200, "validation": 100, "test": 100}
    random = np.random.default_rng(0)
    files = [write_png(random.bytes(SIDE * SIDE)) for _ in range(LINKED)]
    directory.mkdir()
    for split, examples in splits.items():
        if storage == "tensor":
            pixels = np.zeros(SIDE * SIDE, np.uint8)
            with SplitWriter(directory, split, storage) as writer:
                for index in range(examples):
                    writer.append(index % CLASSES, pixels)
        else:
            _link(directory, split, examples, files)
    rows = [ReportRow("train", "0", 0, "a", "f", SIDE, SIDE, "")]
    write_report(directory, make_report(rows, source="folder:synthetic", fingerprint="f" * 64))
    names = sorted(path for path in directory.iterdir() if path.suffix in (".npy", ".csv", ".json"))
    described = {path.name: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in names}
    manifest = {
        "format_version": FORMAT_VERSION,
        "source": "folder:synthetic",
        "fingerprint": "f" * 64,
        "class_names": [str(label) for label in range(CLASSES)],
        "image_shape": [SIDE, SIDE, 1],
        "splits": splits,
        "storage": storage,
        "undecodable": 0,
        "files": described,
    }
    write_json(directory / "manifest.json", seal(manifest))
    return PreparedDataset.open(directory)


def _link(directory: Path, split: str, examples: int, files: list[bytes]) -> None:
    from rampline.data.dataset import digests_file, labels_file

    originals: list[Path] = []
    for index in range(examples):
        path = example_file(directory, split, index)
        if index % EXAMPLES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        # ext4 takes 65,000 links to a file.
        if index < LINKED or index % (LINKED * 60_000) < LINKED:
            path.write_bytes(files[index % LINKED])
            originals[index % LINKED : index % LINKED + 1] = [path]
        else:
            os.link(originals[index % LINKED], path)
    digests = np.frombuffer(b"".join(digest(file) for file in files), np.uint8).reshape(LINKED, DIGEST_BYTES)
    np.save(digests_file(directory, split), digests[np.arange(examples) % LINKED])
    np.save(labels_file(directory, split), (np.arange(examples) % CLASSES).astype(np.int32))


def peak_mib(who: int = resource.RUSAGE_SELF) -> float:
    """Largest resident set so far."""
    return resource.getrusage(who).ru_maxrss / 1024


def prepare(images: int, folder: Path) -> dict[str, float]:
    """Prepare a folder of images in encoded storage; the peak is that of the preparation process."""
    from rampline.config import DataConfig
    from rampline.data.preparation import prepare_dataset
    from rampline.record.home import Home

    make_folder(folder / "images", images)
    config = DataConfig(source=f"folder:{folder / 'images'}", image_size=SIDE, cache="none")
    began = time.perf_counter()
    prepare_dataset(config, Home(root=folder / "home"))
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "images_per_second": images / seconds, "peak_mib": peak_mib(resource.RUSAGE_CHILDREN)}


def check(images: int, folder: Path) -> dict[str, float]:
    """The check of every run before it starts: the first, which reads all, and the second."""
    from rampline.data.integrity import check_intact

    small = make_store(folder / "small", 1000, "encoded_files")
    check_intact(small)
    base = peak_mib()
    dataset = make_store(folder / "store", images, "encoded_files")
    _forget_peak()
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        check_intact(dataset)
        seconds.append(time.perf_counter() - began)
    peak = _peak_since_mib()
    return {"seconds": seconds[0], "seconds_again": seconds[1], "peak_mib": peak, "grown_mib": peak - base}


def read(images: int, folder: Path, storage: str) -> dict[str, float]:
    """What a role does: opens the training split, and takes batches from all over it."""
    dataset = make_store(folder / "store", images, storage)
    import tensorflow as tf

    from rampline.pipeline.examples import open_examples

    _forget_peak()
    base = _peak_since_mib()
    began = time.perf_counter()
    examples = open_examples(dataset, "train")
    opened = time.perf_counter() - began
    take = tf.function(examples.take)
    random = np.random.default_rng(0)
    began = time.perf_counter()
    for _ in range(BATCHES):
        take(tf.constant(random.integers(images - 200, size=BATCH), tf.int64))
    rate = BATCH * BATCHES / (time.perf_counter() - began)
    peak = _peak_since_mib()
    return {"open_seconds": opened, "images_per_second": rate, "peak_mib": peak, "grown_mib": peak - base}


def _forget_peak() -> None:
    """Linux: the peak of this process counts from here on."""
    Path("/proc/self/clear_refs").write_text("5")


def _peak_since_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Measure one point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("prepare", "check", "read"))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--storage", choices=("encoded_files", "tensor"), default="encoded_files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.what == "prepare":
            figures = prepare(options.images, folder)
        elif options.what == "check":
            figures = check(options.images, folder)
        else:
            figures = read(options.images, folder, options.storage)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
