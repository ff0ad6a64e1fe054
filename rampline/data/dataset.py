"""A prepared dataset as it lies on disk: what is in it, and the names of its files. No TensorFlow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rampline.errors import DatasetError
from rampline.files import JsonData, read_csv, read_json

# Also counts how encoded images become pixels: a run that goes on must not see others than it began with.
FORMAT_VERSION = 3
SPLITS = ("train", "validation", "test")
# By `data.cache`.
STORAGES = {"memory": "tensor", "disk": "raw_files", "none": "encoded_files"}
EXAMPLES_PER_FOLDER = 1000
# Of an images file, a digest per block: blocks are verified in parallel.
BLOCK_BYTES = 8 * 2**20
DIGEST_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class PreparedDataset(JsonData):
    """A directory that holds decoded (or encoded) images, their labels, a manifest and a data report.

    Attributes:
        directory: where it lies; named after the source and the content.
        source: `data.source` of the configuration that it was prepared for.
        fingerprint: sha256 (hex) over split, class, name and content of every example of the source.
        class_names: name of every label; label `i` is `class_names[i]`.
        image_shape: `(height, width, channels)` after resizing.
        splits: examples per split; `train` and `validation` always, `test` where the source has one; `test` alone
            where the images were prepared to be scored.
        storage: `tensor` (one file of fixed-length uint8 records per split), `raw_files` (one file of uint8 pixels per
            example) or `encoded_files` (one file per example, encoded as in the source, in its original size).
        undecodable: examples that were chosen and left out because they do not decode.
        place: `source` with its path absolute; empty where it was prepared before that was kept.
    """

    directory: Path
    source: str
    fingerprint: str
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    splits: dict[str, int]
    storage: str
    undecodable: int = 0
    place: str = ""

    @classmethod
    def open(cls, directory: Path) -> PreparedDataset:
        """Read the manifest of a prepared directory.

        Raises:
            DatasetError: when there is no prepared dataset, or it was damaged after it had been written.
        """
        try:
            manifest = read_json(directory / "manifest.json")
        except (OSError, ValueError) as error:
            raise DatasetError(f"{directory} holds no prepared dataset ({error}): {_remedy(directory)}") from error
        try:
            if manifest.get("format_version") != FORMAT_VERSION:
                raise DatasetError(
                    f"{directory} was prepared by another version of Rampline: delete it and prepare again"
                )
            dataset = cls.from_dict({**manifest, "directory": directory})
            # They become names of files: nothing but these may be read.
            if not set(SPLITS) >= set(dataset.splits) or dataset.storage not in STORAGES.values():
                raise ValueError(dataset.splits)
        except (AttributeError, TypeError, ValueError) as error:
            raise DatasetError(f"{directory / 'manifest.json'} is damaged: {_remedy(directory)}") from error
        dataset._check_images_files()
        return dataset

    def _check_images_files(self) -> None:
        for split, examples in self.splits.items() if self.storage == "tensor" else ():
            path, expected = self.images_file(split), examples * math.prod(self.image_shape)
            size = path.stat().st_size if path.is_file() else 0
            if size != expected:
                raise DatasetError(f"{path} is damaged ({size} of {expected} bytes): {_remedy(self.directory)}")

    @property
    def evaluation_split(self) -> str:
        """The split that final scores come from: `test` if there is one, else `validation`."""
        return "test" if "test" in self.splits else "validation"

    def labels(self, split: str) -> np.ndarray:
        """Labels of a split, `(examples,) int32`, in the order of its images."""
        return np.load(labels_file(self.directory, split), allow_pickle=False)

    def orientations(self, split: str) -> np.ndarray | None:
        """What `decode` must know of encoded images, `(examples,) int8`; `None` where all are upright or decoded."""
        file = orientations_file(self.directory, split)
        return np.load(file, allow_pickle=False) if file.is_file() else None

    def paths(self, split: str) -> list[str]:
        """What each image of a split is called in its source, in their order; empty where nothing was written of it."""
        file = split_file(self.directory, split)
        return read_csv(file, dtype=str, keep_default_na=False)["path"].tolist() if file.is_file() else []

    def damaged(self, file: Path) -> DatasetError:
        """The error that names a file which is not as it was prepared, and says what to do."""
        return DatasetError(f"{file} is not as it was prepared: {_remedy(self.directory)}")

    def images_file(self, split: str) -> Path:
        """File of a `tensor` storage: `examples * height * width * channels` bytes, uint8, C order, no header."""
        return images_file(self.directory, split)

    def example_prefix(self, split: str) -> str:
        """Begin of the paths of `raw_files` and `encoded_files`: example `i` is `PREFIX{i//1000:05d}/{i:08d}`."""
        return f"{self.directory / split}/"


def _remedy(directory: Path) -> str:
    return f"delete {directory}, and it is prepared again"


def labels_file(directory: Path, split: str) -> Path:
    """NumPy file with the labels of a split."""
    return directory / f"{split}_labels.npy"


def split_file(directory: Path, split: str) -> Path:
    """Table of a split's images, in their order: `path`, relative to the source, `label`, the name of the class, and
    with `data.group` their `group`."""
    return directory / f"{split}.csv"


def orientations_file(directory: Path, split: str) -> Path:
    """NumPy file with the EXIF orientations of a split's encoded images, where one is not upright."""
    return directory / f"{split}_orientations.npy"


def digests_file(directory: Path, split: str) -> Path:
    """NumPy file with what the images must hash to, see `rampline.data.storage.SplitWriter`."""
    return directory / f"{split}_digests.npy"


def images_file(directory: Path, split: str) -> Path:
    """File with all pixels of a split (storage `tensor`)."""
    return directory / f"{split}_images.bin"


def example_file(directory: Path, split: str, index: int) -> Path:
    """File of example `index` of a split (storages `raw_files` and `encoded_files`)."""
    return directory / f"{split}/{index // EXAMPLES_PER_FOLDER:05d}/{index:08d}"
