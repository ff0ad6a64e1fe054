"""Small image folders, made by the tests themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.data.store import Reporter, store_dataset
from rampline.home import Home


def encode_image(seed: int, size: tuple[int, int] = (12, 10), kind: str = "png") -> bytes:
    """A random RGB image of `(height, width)`; other seeds give other bytes."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
    return (tf.io.encode_jpeg if kind == "jpg" else tf.io.encode_png)(pixels).numpy()


@pytest.fixture
def make_image() -> Callable[..., bytes]:
    """`make_image(seed, (height, width), "png" | "jpg")`: an encoded image."""
    return encode_image


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path / "home")


class Store:
    """`store(source=..., ...)` prepares in this process; `store.lines` is what was said."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.lines: list[str] = []

    def __call__(self, **values: Any) -> PreparedDataset:
        reporter = Reporter(progress=lambda done, total: None, log=self.lines.append)
        return PreparedDataset.open(store_dataset(DataConfig(**values), self.home, reporter))


@pytest.fixture
def store(home: Home) -> Store:
    return Store(home)


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """`make_folder({"train/cats": 4, "train/dogs": 3})` writes that many different images, in turn PNG and JPEG."""

    def make(counts: dict[str, int], name: str = "images") -> Path:
        root, seed = tmp_path / name, 0
        for folder, number in counts.items():
            (root / folder).mkdir(parents=True)
            for index in range(number):
                kind = ("png", "jpg")[index % 2]
                (root / folder / f"{index:03d}.{kind}").write_bytes(encode_image(seed, kind=kind))
                seed += 1
        return root

    return make
