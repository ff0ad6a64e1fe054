"""Small image folders, made by the tests themselves."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from stored_data import store_here

from rampline.config import DataConfig
from rampline.data.dataset import PreparedDataset
from rampline.record.home import Home

# How pixels are stored that EXIF's orientation of this number turns upright.
UNDO = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


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
    """`store(source=..., ...)` prepares in this process, `scored_classes` or not; `store.lines` is what was said."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.lines: list[str] = []

    def __call__(self, *, scored_classes: tuple[str, ...] | None = None, **values: Any) -> PreparedDataset:
        return store_here(DataConfig(**values), self.home, scored_classes=scored_classes, log=self.lines.append)


@pytest.fixture
def store(home: Home) -> Store:
    return Store(home)


def write_folder(root: Path, counts: dict[str, int]) -> Path:
    seed = 0
    for folder, number in counts.items():
        (root / folder).mkdir(parents=True)
        for index in range(number):
            kind = ("png", "jpg")[index % 2]
            (root / folder / f"{index:03d}.{kind}").write_bytes(encode_image(seed, kind=kind))
            seed += 1
    return root


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """`make_folder({"train/cats": 4, "train/dogs": 3})` writes that many different images, in turn PNG and JPEG."""
    return lambda counts, name="images": write_folder(tmp_path / name, counts)


@pytest.fixture(scope="session")
def prepare_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, dict[str, Path]]]:
    """`prepare_once(counts, caches)`: a home with these images, 8 x 8, and where they are in it by cache."""

    def prepare(counts: dict[str, int], caches: Sequence[str]) -> tuple[Path, dict[str, Path]]:
        folder = tmp_path_factory.mktemp("once")
        store, source = Store(Home(root=folder / "home")), f"folder:{write_folder(folder / 'images', counts)}"
        datasets = {cache: store(source=source, image_size=8, cache=cache) for cache in caches}
        return store.home.root, {
            cache: dataset.directory.relative_to(store.home.root) for cache, dataset in datasets.items()
        }

    return prepare


@pytest.fixture
def photograph() -> np.ndarray:
    """`(64, 96, 3) uint8` of smooth shapes, another one in each corner."""
    shapes = np.random.default_rng(0).uniform(20, 235, (4, 5, 3))
    return tf.cast(tf.clip_by_value(tf.image.resize(shapes, (64, 96), method="bicubic"), 0, 255), tf.uint8).numpy()


@pytest.fixture
def turned(photograph: np.ndarray) -> Callable[..., bytes]:
    """`turned(6, "jpeg" | "png" | "webp")`: the photograph as a camera stores it that was held so."""

    def encode(orientation: int, kind: str = "jpeg", **options: Any) -> bytes:
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored, file = Image.fromarray(photograph), io.BytesIO()
        if orientation in UNDO:
            stored = stored.transpose(UNDO[orientation])
        quality = {"jpeg": {"quality": 95}, "webp": {"lossless": True}}.get(kind, {})
        stored.save(file, kind, **{"exif": exif.tobytes(), **quality, **options})
        return file.getvalue()

    return encode
