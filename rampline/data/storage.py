"""Writing the images and labels of one split, in the storage that the cache setting asks for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from rampline.data.dataset import EXAMPLES_PER_FOLDER, example_file, images_file, labels_file


class SplitWriter:
    """Appends examples to a split of `directory`; the labels are written when the block ends."""

    def __init__(self, directory: Path, split: str, storage: str) -> None:
        self._directory, self._split, self._storage = directory, split, storage
        self._labels: list[int] = []
        self._sha256 = hashlib.sha256()
        self._bytes = 0
        self._images: BinaryIO | None = images_file(directory, split).open("wb") if storage == "tensor" else None

    def __enter__(self) -> SplitWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._images is not None:
            self._images.close()
        if kind is None:
            np.save(labels_file(self._directory, self._split), np.asarray(self._labels, dtype=np.int32))

    def write(self, *, label: int, pixels: np.ndarray, encoded: bytes) -> None:
        """Append one example: `pixels` is `(height, width, channels) uint8`, `encoded` what it was decoded from."""
        content = encoded if self._storage == "encoded_files" else pixels.tobytes()
        if self._images is not None:
            self._images.write(content)
        else:
            self._write_file(content)
        self._labels.append(label)
        self._sha256.update(content)
        self._bytes += len(content)

    def _write_file(self, content: bytes) -> None:
        path = example_file(self._directory, self._split, len(self._labels))
        if len(self._labels) % EXAMPLES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(content)

    @property
    def examples(self) -> int:
        """Examples written so far."""
        return len(self._labels)

    def describe(self) -> dict[str, int | str]:
        """Size and sha256 of the images, one after another."""
        return {"examples": self.examples, "bytes": self._bytes, "sha256": self._sha256.hexdigest()}
