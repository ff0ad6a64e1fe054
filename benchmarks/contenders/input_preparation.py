"""How fast photographs are prepared: `python -m benchmarks.contenders.input_preparation product|bound|ceiling|photos`.

    product  `store_dataset`, from listing the files to the complete directory
    bound    decode_jpeg and resize alone, on one core
    ceiling  that on every core at once, in processes that know nothing of each other
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
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.contenders.work import is_quick
from benchmarks.datasets import bench_folder
from rampline.config import DataConfig
from rampline.data.store import Reporter, store_dataset
from rampline.files import complete_directory
from rampline.home import Home

IMAGE_SIZE, DISTINCT = 128, 200


def find_photos() -> Path:
    """A folder of photographs, made by the contender that needs it first."""
    if given := os.environ.get("RAMPLINE_BENCH_PHOTOS"):
        return Path(given)
    folder = photos_folder()
    if not folder.is_dir():
        # In a process of its own: a preparation finds TensorFlow imported and nothing run.
        subprocess.run([sys.executable, "-m", "benchmarks.contenders.input_preparation", "photos"], check=True)
    return folder


def make_photos() -> None:
    """Make the folder of photographs."""
    copies = copies_of_each()
    with complete_directory(photos_folder()) as aside:
        for label in ("a", "b"):
            (aside / label).mkdir()
        for number in range(DISTINCT):
            write_photo(aside / "ab"[number % 2], number, copies)


def copies_of_each() -> int:
    """Fewer in the quick mode."""
    return 5 if is_quick() else 30


def photos_folder() -> Path:
    """Where those lie that are made."""
    return bench_folder() / f"photos-{DISTINCT * copies_of_each()}"


def write_photo(folder: Path, seed: int, copies: int) -> None:
    """One image under several names."""
    random = np.random.default_rng(seed)
    shapes = tf.image.resize(random.uniform(0, 255, (12, 16, 3)), (375, 500), method="bicubic")
    pixels = tf.clip_by_value(shapes + random.normal(0, 6, (375, 500, 3)), 0, 255)
    first = folder / f"{seed:04d}-00.jpg"
    first.write_bytes(tf.io.encode_jpeg(tf.cast(pixels, tf.uint8), quality=75).numpy())
    for copy in range(1, copies):
        os.link(first, folder / f"{seed:04d}-{copy:02d}.jpg")


def prepare(photos: Path, home: Path) -> None:
    """Prepare them all, below `home`."""
    reporter = Reporter(progress=lambda done, total: None, log=lambda line: None)
    config = DataConfig(source=f"folder:{photos}", image_size=IMAGE_SIZE)
    store_dataset(config, Home(root=home), reporter, may_fork=True)


@tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
def decode_all(contents: tf.Tensor) -> tf.Tensor:
    """Decode and resize one after another; the sum of a pixel of each, so that all is done."""
    total = tf.constant(0)
    for content in contents:
        image = tf.image.resize(tf.io.decode_jpeg(content, channels=3), (IMAGE_SIZE, IMAGE_SIZE), antialias=True)
        total += tf.cast(tf.cast(tf.round(image), tf.uint8)[0, 0, 0], tf.int32)
    return total


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


def measure_ceiling() -> dict[str, float]:
    """What the cores of this machine decode together, at this time; the processes begin at once."""
    find_photos()
    command = [sys.executable, "-m", "benchmarks.contenders.input_preparation", "bound", "--wait"]
    processes = [
        subprocess.Popen([*command, f"--core={core}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for core in sorted(os.sched_getaffinity(0))
    ]
    for process in processes:
        if not process.stdout or process.stdout.readline() != "ready\n":
            raise RuntimeError("a process of the ceiling did not come to decode")
    for process in processes:
        if process.stdin:
            process.stdin.write("go\n")
            process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    return {"examples_per_second": sum(json.loads(output)["examples_per_second"] for output in outputs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("product", "bound", "ceiling", "photos"))
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)), help="that of the bound")
    parser.add_argument("--wait", action="store_true", help="with the bound: say when it is ready, wait for a line")
    options = parser.parse_args()
    kind = options.kind
    if kind == "photos":
        make_photos()
        return
    if kind == "ceiling":
        print(json.dumps(measure_ceiling()))
        return
    if kind == "bound":
        # Before TensorFlow makes its threads.
        os.sched_setaffinity(0, {options.core})
    photos = find_photos()
    contents = [path.read_bytes() for path in sorted(photos.glob("*/*.jpg"))[:: 3 if kind == "bound" else 1]]
    if kind == "bound":
        decode_all(contents[:8])
        if options.wait:
            print("ready", flush=True)
            sys.stdin.readline()
    with tempfile.TemporaryDirectory(dir=bench_folder()) as home:
        started, cpu = time.perf_counter(), cpu_seconds()
        if kind == "bound":
            decode_all(contents)
        else:
            prepare(photos, Path(home))
        seconds, cpu = time.perf_counter() - started, cpu_seconds() - cpu
    done = len(contents)
    print(json.dumps({"examples_per_second": done / seconds, "cpu_seconds_per_1000_examples": cpu / done * 1000}))


if __name__ == "__main__":
    main()
