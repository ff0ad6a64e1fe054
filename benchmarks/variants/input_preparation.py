"""How fast photographs are prepared: `python -m benchmarks.variants.input_preparation KIND`.

    product  `store_dataset`, from listing the files to the complete directory
    by-hand  decode_jpeg and resize alone, on one core
    photos   make the photographs, and measure nothing: the others start it where there are none yet

Photographs are made: 500x375 JPEGs of smooth shapes and noise, about 25 KB each. RAMPLINE_BENCH_PHOTOS names a folder
of JPEGs in a sub-folder per class to take instead. Prints examples per second and CPU seconds per 1,000 examples.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.datasets import bench_folder
from rampline.config import DataConfig
from rampline.data.ingest import Reporter, store_dataset
from rampline.files import complete_directory
from rampline.record.home import Home

IMAGE_SIZE = 128
# As many as keep both cores busy for some seconds: a preparation takes half a second to start.
DISTINCT, COPIES = 200, 30


def find_photos() -> Path:
    """A folder of photographs, made by the variant that needs it first."""
    if given := os.environ.get("RAMPLINE_BENCH_PHOTOS"):
        return Path(given)
    folder = photos_folder()
    if not folder.is_dir():
        # In a process of its own: a preparation finds TensorFlow imported and nothing run.
        subprocess.run([sys.executable, "-m", "benchmarks.variants.input_preparation", "photos"], check=True)
    return folder


def make_photos() -> None:
    """Make the folder of photographs."""
    with complete_directory(photos_folder()) as aside:
        for label in ("a", "b"):
            (aside / label).mkdir()
        for number in range(DISTINCT):
            write_photo(aside / "ab"[number % 2], number)


def photos_folder() -> Path:
    """Where those lie that are made."""
    return bench_folder() / f"photos-{DISTINCT * COPIES}"


def write_photo(folder: Path, seed: int) -> None:
    """One image under several names."""
    random = np.random.default_rng(seed)
    shapes = tf.image.resize(random.uniform(0, 255, (12, 16, 3)), (375, 500), method="bicubic")
    pixels = tf.clip_by_value(shapes + random.normal(0, 6, (375, 500, 3)), 0, 255)
    first = folder / f"{seed:04d}-00.jpg"
    first.write_bytes(tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=75).numpy())
    for copy in range(1, COPIES):
        os.link(first, folder / f"{seed:04d}-{copy:02d}.jpg")


def prepare(photos: Path, home: Path) -> None:
    """Prepare them all, below `home`."""
    reporter = Reporter(progress=lambda done, total: None, log=lambda line: None)
    config = DataConfig(source=f"folder:{photos}", image_size=IMAGE_SIZE)
    store_dataset(config, Home(root=home), reporter, may_fork=True)


def decode_by_hand(content: tf.Tensor) -> tf.Tensor:
    """As a user would write it."""
    image = tf.image.resize(tf.io.decode_jpeg(content, channels=3), (IMAGE_SIZE, IMAGE_SIZE), antialias=True)
    return tf.cast(tf.round(image), tf.uint8)


def compile_loop(decode: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[list[bytes]], tf.Tensor]:
    """Decodes one after another; the sum of a pixel of each, so that all is done."""

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def decode_all(contents: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0)
        for content in contents:
            total += tf.cast(decode(content)[0, 0, 0], tf.int32)
        return total

    return decode_all


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def measure_one_core() -> dict[str, float]:
    """A third of the photographs, read already, on the first core."""
    # Before TensorFlow makes its threads.
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    contents = [path.read_bytes() for path in list_photos()[::3]]
    decode_all = compile_loop(decode_by_hand)
    decode_all(contents[:8])
    return speed(lambda: decode_all(contents), len(contents))


def measure_preparation() -> dict[str, float]:
    """All photographs."""
    photos, examples = find_photos(), len(list_photos())
    with tempfile.TemporaryDirectory(dir=bench_folder()) as home:
        return speed(lambda: prepare(photos, Path(home)), examples)


def list_photos() -> list[Path]:
    """The same ones in the same order."""
    return sorted(find_photos().glob("*/*.jpg"))


def speed(work: Callable[[], object], examples: int) -> dict[str, float]:
    """What is printed of a piece of work."""
    started, cpu = time.perf_counter(), cpu_seconds()
    work()
    seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    return {"examples_per_second": examples / seconds, "cpu_seconds_per_1000_examples": cpu / examples * 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("product", "by-hand", "photos"), metavar="KIND")
    kind = parser.parse_args().kind
    if kind == "photos":
        make_photos()
    else:
        print(json.dumps(measure_preparation() if kind == "product" else measure_one_core()))


if __name__ == "__main__":
    main()
