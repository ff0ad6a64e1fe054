"""How fast photographs are prepared: `python -m benchmarks.contenders.input_preparation KIND`.

    product       `store_dataset`, from listing the files to the complete directory
    by-hand       decode_jpeg and resize alone, on one core
    by-hand-each  that on every core at once, in processes that know nothing of each other
    as-prepared   the product's decoding and resizing alone, on one core
    photos        make the photographs, and measure nothing: the others start it where there are none yet

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
from rampline.data.decoder import decode_and_resize
from rampline.data.ingest import Reporter, store_dataset
from rampline.files import complete_directory
from rampline.record.home import Home

IMAGE_SIZE = 128
# As many as keep both cores busy for some seconds: a preparation takes half a second to start.
DISTINCT, COPIES = 200, 30


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


def decode_as_prepared(content: tf.Tensor) -> tf.Tensor:
    """As the preparation does it."""
    return decode_and_resize(content, (IMAGE_SIZE, IMAGE_SIZE, 3))


ON_ONE_CORE = {"by-hand": decode_by_hand, "as-prepared": decode_as_prepared}


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


def measure_each_core() -> dict[str, float]:
    """What the cores of this machine decode together, at this time; the processes begin at once."""
    find_photos()
    command = [sys.executable, "-m", "benchmarks.contenders.input_preparation", "by-hand", "--wait"]
    processes = [
        subprocess.Popen([*command, f"--core={core}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for core in sorted(os.sched_getaffinity(0))
    ]
    for process in processes:
        if not process.stdout or process.stdout.readline() != "ready\n":
            raise RuntimeError("a process did not come to decode")
    for process in processes:
        if process.stdin:
            process.stdin.write("go\n")
            process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    return {"examples_per_second": sum(json.loads(output)["examples_per_second"] for output in outputs)}


def measure_one_core(kind: str, core: int, *, wait: bool) -> dict[str, float]:
    """A third of the photographs, read already; with `wait` it says when it is ready, and begins at a line."""
    # Before TensorFlow makes its threads.
    os.sched_setaffinity(0, {core})
    contents = [path.read_bytes() for path in list_photos()[::3]]
    decode_all = compile_loop(ON_ONE_CORE[kind])
    decode_all(contents[:8])
    if wait:
        print("ready", flush=True)
        sys.stdin.readline()
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
    parser.add_argument("kind", choices=("product", *ON_ONE_CORE, "by-hand-each", "photos"), metavar="KIND")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)), help="where there is one")
    parser.add_argument("--wait", action="store_true", help="on one core: say when it is ready, wait for a line")
    options = parser.parse_args()
    if options.kind == "photos":
        make_photos()
    elif options.kind == "by-hand-each":
        print(json.dumps(measure_each_core()))
    elif options.kind == "product":
        print(json.dumps(measure_preparation()))
    else:
        print(json.dumps(measure_one_core(options.kind, options.core, wait=options.wait)))


if __name__ == "__main__":
    main()
