"""Prepared datasets of random images, as the product's own preparation writes them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rampline.data import integrity
from rampline.data.dataset import FORMAT_VERSION, PreparedDataset
from rampline.data.storage import SplitWriter, stored_content
from rampline.files import complete_directory, write_json


def bench_folder() -> Path:
    """Where variants of one benchmark share data; of one that is run by hand, a folder that stays."""
    return Path(
        os.environ.get("RAMPLINE_BENCH_FOLDER") or Path(tempfile.gettempdir()) / f"rampline-bench-{os.getuid()}"
    )


def open_shared(name: str, *, shape: tuple[int, int, int], splits: Mapping[str, int], classes: int) -> PreparedDataset:
    """The dataset of that name in `bench_folder()`, made by whoever needs it first."""
    directory = bench_folder() / "data" / name
    if not directory.is_dir():
        with complete_directory(directory) as aside:
            make_dataset(aside, shape=shape, splits=splits, classes=classes)
    return PreparedDataset.open(directory)


def make_dataset(
    directory: Path,
    *,
    shape: tuple[int, int, int],
    splits: Mapping[str, int],
    classes: int = 2,
    storage: str = "tensor",
    encoded_bytes: int = 0,
) -> PreparedDataset:
    """Write random pixels and labels, the same ones each time.

    Args:
        directory: empty or absent.
        shape: (height, width, channels) of every image.
        splits: number of examples of each split.
        classes: labels are 0 to classes - 1.
        storage: see `SplitWriter`.
        encoded_bytes: size of each file of an encoded storage; its content is no image.
    """
    directory.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    encoded = random.bytes(encoded_bytes)
    for split, examples in splits.items():
        with SplitWriter(directory, split, storage) as writer:
            pixels = random.integers(0, 256, shape, dtype=np.uint8)
            for label in random.integers(classes, size=examples):
                if not encoded:
                    pixels = random.integers(0, 256, shape, dtype=np.uint8)
                writer.append(int(label), stored_content(storage, pixels=pixels, encoded=encoded))
    manifest = {
        "format_version": FORMAT_VERSION,
        "source": "random",
        "fingerprint": "",
        "class_names": [str(number) for number in range(classes)],
        "image_shape": shape,
        "splits": dict(splits),
        "undecodable": 0,
        "storage": storage,
        "files": {},
    }
    write_json(directory / "manifest.json", integrity.seal(manifest))
    return PreparedDataset.open(directory)
