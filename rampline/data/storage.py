"""Writing the images and labels of one split, in the storage that the cache setting asks for."""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from rampline.data.dataset import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    EXAMPLES_PER_FOLDER,
    digests_file,
    example_file,
    images_file,
    labels_file,
)


def digest(content: bytes | bytearray | memoryview) -> bytes:
    """The first half of the sha256: `DIGEST_BYTES`."""
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]


class SplitWriter:
    """Appends examples to a split of `directory`; the labels and digests are written when the block ends.

    The digests, `(n, DIGEST_BYTES) uint8`, are those of the examples, one each; of a `tensor` storage those of every
    `BLOCK_BYTES` of the images file.
    """

    def __init__(self, directory: Path, split: str, storage: str) -> None:
        self._directory, self._split, self._storage = directory, split, storage
        # Numbers, not objects: there is one of each for every image.
        self._labels = array("i")
        self._digests = bytearray()
        self._block = bytearray()
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
            if self._block:
                self._digests += digest(self._block)
            digests = np.frombuffer(self._digests, np.uint8).reshape(-1, DIGEST_BYTES)
            np.save(digests_file(self._directory, self._split), digests)

    def write(self, *, label: int, pixels: np.ndarray, encoded: bytes) -> None:
        """Append one example: `pixels` is `(height, width, channels) uint8`, `encoded` what it was decoded from."""
        content = encoded if self._storage == "encoded_files" else pixels.tobytes()
        if self._images is not None:
            self._images.write(content)
            self._digest_blocks(content)
        else:
            self._write_file(content)
            self._digests += digest(content)
        self._labels.append(label)
        self._bytes += len(content)

    def _digest_blocks(self, content: bytes) -> None:
        self._block += content
        while len(self._block) >= BLOCK_BYTES:
            self._digests += digest(memoryview(self._block)[:BLOCK_BYTES])
            self._block = self._block[BLOCK_BYTES:]

    def _write_file(self, content: bytes) -> None:
        path = example_file(self._directory, self._split, len(self._labels))
        if len(self._labels) % EXAMPLES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(content)

    @property
    def examples(self) -> int:
        """Examples written so far."""
        return len(self._labels)

    def describe(self) -> dict[str, int]:
        """Number and size of the images."""
        return {"examples": self.examples, "bytes": self._bytes}
