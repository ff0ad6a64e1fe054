"""Writing the images and labels of one split, in the storage that the cache setting asks for."""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeAlias

import numpy as np

from rampline.data.dataset import (
    BLOCK_BYTES,
    DIGEST_BYTES,
    EXAMPLES_PER_FOLDER,
    digests_file,
    example_file,
    images_file,
    labels_file,
    orientations_file,
)
from rampline.data.orientation import UPRIGHT

# What travels from who decodes to who writes: pixels are an array, because those are pickled without a copy.
Content: TypeAlias = bytes | np.ndarray


def digest(content: bytes | bytearray | memoryview) -> bytes:
    """The first half of the sha256: `DIGEST_BYTES`."""
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]


def stored_content(storage: str, pixels: np.ndarray | None, encoded: bytes) -> Content | None:
    """What a storage keeps of an example: its pixels or what they were decoded from; nothing without pixels."""
    if pixels is None:
        return None
    return encoded if storage == "encoded_files" else np.ascontiguousarray(pixels).reshape(-1)


class SplitWriter:
    """Appends examples to a split of `directory`; the labels and digests are written when the block ends.

    The digests, `(n, DIGEST_BYTES) uint8`, are those of the examples, one each; of a `tensor` storage those of every
    `BLOCK_BYTES` of the images file.
    """

    def __init__(self, directory: Path, split: str, storage: str) -> None:
        self._directory, self._split = directory, split
        # Numbers, not objects: there is one of each for every image.
        self._labels = array("i")
        self._orientations = array("b")
        self._is_encoded = storage == "encoded_files"
        self._digests = bytearray()
        self._block, self._block_bytes = hashlib.sha256(), 0
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
            if self._is_encoded and any(orientation != UPRIGHT for orientation in self._orientations):
                np.save(orientations_file(self._directory, self._split), np.asarray(self._orientations, dtype=np.int8))
            if self._block_bytes:
                self._end_block()
            digests = np.frombuffer(self._digests, np.uint8).reshape(-1, DIGEST_BYTES)
            np.save(digests_file(self._directory, self._split), digests)

    def append(self, label: int, content: Content, orientation: int = UPRIGHT) -> None:
        """Append one example by its `stored_content`; pixels are upright, what is still encoded has its orientation."""
        view = memoryview(content) if isinstance(content, bytes) else content.data
        if self._images is not None:
            self._images.write(view)
            self._digest_blocks(view)
        else:
            self._write_file(view)
            self._digests += digest(view)
        self._labels.append(label)
        self._orientations.append(orientation)
        self._bytes += len(view)

    def _digest_blocks(self, content: memoryview) -> None:
        while content:
            part = content[: BLOCK_BYTES - self._block_bytes]
            self._block.update(part)
            self._block_bytes += len(part)
            if self._block_bytes == BLOCK_BYTES:
                self._end_block()
            content = content[len(part) :]

    def _end_block(self) -> None:
        self._digests += self._block.digest()[:DIGEST_BYTES]
        self._block, self._block_bytes = hashlib.sha256(), 0

    def _write_file(self, content: memoryview) -> None:
        path = example_file(self._directory, self._split, len(self._labels))
        if len(self._labels) % EXAMPLES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(content)

    def describe(self) -> dict[str, int]:
        """Number and size of the images."""
        return {"examples": len(self._labels), "bytes": self._bytes}
