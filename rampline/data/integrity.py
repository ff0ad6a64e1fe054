"""Whether a prepared dataset is still what was prepared: nothing flipped, cut off, deleted or edited. No TensorFlow.

This finds accidents (disks, copies, editors), not an attacker: a person who can write to the directory can also
write the digests anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rampline.data.dataset import BLOCK_BYTES, EXAMPLES_PER_FOLDER, PreparedDataset, digests_file, example_file
from rampline.data.parallel import map_in_order
from rampline.data.storage import digest
from rampline.files import json_digest, read_json, write_json

SEAL = "sha256"
# Of files whose sizes and times are as they were when they were last read, at most this much is read again per check.
REREAD_BYTES = 4 * 2**30


@dataclass(frozen=True, kw_only=True)
class _Folder:
    """A folder of example files: what they must hash to, and a digest of their sizes and times as they are now."""

    name: str
    split: str
    indices: range
    digests: np.ndarray
    bytes: int
    stat: str


def seal(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """`manifest` with a digest of itself."""
    return {**manifest, SEAL: _sum(manifest)}


def check_intact(
    dataset: PreparedDataset, *, everything: bool = False, advance: Callable[[], None] = lambda: None
) -> None:
    """Compare a prepared dataset with the digests that were written when it was prepared.

    Manifest, labels, reports and the images of storage `tensor` are always read in full. Of the storages with a file
    per example every file must be there; folders of 1000 that were never read by a check, or whose sizes or times have
    changed since, are read in full, and of the others up to `REREAD_BYTES`, those that were read longest ago first. So
    a bit that flips under an unchanged time is found at once in a dataset of that size, and in a larger one within
    (size / `REREAD_BYTES`) checks.

    Args:
        dataset: what to check.
        everything: read all files, whatever their times.
        advance: called at every block or folder that was read.

    Raises:
        DatasetError: one line that names the first file which differs, and what to do.
    """
    _check_small_files(dataset)
    if dataset.storage == "tensor":
        for split in dataset.splits:
            _check_images_file(dataset, split, advance)
        return
    folders = list(_each(map_in_order(lambda place: _look_at(dataset, *place), _places(dataset)), advance))
    last_read = {} if everything else _read_stamp(dataset)
    chosen = _choose(folders, last_read)
    for _ in _each(map_in_order(lambda folder: _check_folder(dataset, folder), chosen), advance):
        pass
    now = time.time()
    stamps = {folder.name: last_read.get(folder.name, [folder.stat, now]) for folder in folders}
    _write_stamp(dataset, {**stamps, **{folder.name: [folder.stat, now] for folder in chosen}})


def _each(results: Iterator[Any], advance: Callable[[], None]) -> Iterator[Any]:
    for result in results:
        advance()
        yield result


def _sum(manifest: Mapping[str, Any]) -> str:
    return json_digest({key: value for key, value in manifest.items() if key != SEAL})


def _check_small_files(dataset: PreparedDataset) -> None:
    """The manifest, and all that it holds a checksum of."""
    file = dataset.directory / "manifest.json"
    try:
        manifest = read_json(file)
        if manifest[SEAL] != _sum(manifest):
            raise dataset.damaged(file)
        expected = {dataset.directory / name: described["sha256"] for name, described in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise dataset.damaged(file) from error
    for path, sha256 in expected.items():
        if hashlib.sha256(_read(dataset, path)).hexdigest() != sha256:
            raise dataset.damaged(path)


def _read(dataset: PreparedDataset, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise dataset.damaged(path) from error


def _digests(dataset: PreparedDataset, split: str) -> np.ndarray:
    # Mapped: 16 bytes an image would be held until the check ends.
    return np.load(digests_file(dataset.directory, split), mmap_mode="r", allow_pickle=False)


def _check_images_file(dataset: PreparedDataset, split: str, advance: Callable[[], None]) -> None:
    path, expected = dataset.images_file(split), _digests(dataset, split)
    try:
        with path.open("rb") as file:
            blocks = range(0, os.fstat(file.fileno()).st_size, BLOCK_BYTES)
            digests = map_in_order(lambda at: digest(os.pread(file.fileno(), BLOCK_BYTES, at)), blocks)
            found = list(_each(digests, advance))
    except OSError as error:
        raise dataset.damaged(path) from error
    if found != [row.tobytes() for row in expected]:
        raise dataset.damaged(path)


def _places(dataset: PreparedDataset) -> Iterator[tuple[str, range, np.ndarray]]:
    """`(split, indices, their digests)` of every folder."""
    for split, examples in dataset.splits.items():
        digests = _digests(dataset, split)
        for first in range(0, examples, EXAMPLES_PER_FOLDER):
            indices = range(first, min(first + EXAMPLES_PER_FOLDER, examples))
            yield split, indices, digests[indices.start : indices.stop]


def _look_at(dataset: PreparedDataset, split: str, indices: range, digests: np.ndarray) -> _Folder:
    stat, size = hashlib.sha256(), 0
    # Names are made anew wherever they are needed: those of a million files would take half a gigabyte.
    for index in indices:
        file = example_file(dataset.directory, split, index)
        try:
            found = os.stat(file)
        except OSError as error:
            raise dataset.damaged(file) from error
        size += found.st_size
        stat.update(f"{found.st_size} {found.st_mtime_ns} {found.st_ino}\n".encode())
    name = f"{split}/{example_file(dataset.directory, split, indices.start).parent.name}"
    return _Folder(name=name, split=split, indices=indices, digests=digests, bytes=size, stat=stat.hexdigest())


def _choose(folders: list[_Folder], last_read: Mapping[str, list[Any]]) -> list[_Folder]:
    """Folders to read: all that are new or touched, then those that were read longest ago, up to `REREAD_BYTES`."""
    known: list[_Folder] = []
    chosen: list[_Folder] = []
    for folder in folders:
        (known if last_read.get(folder.name, [""])[0] == folder.stat else chosen).append(folder)
    left = REREAD_BYTES
    for folder in sorted(known, key=lambda folder: last_read[folder.name][1]):
        if left > 0:
            chosen.append(folder)
        left -= folder.bytes
    return chosen


def _check_folder(dataset: PreparedDataset, folder: _Folder) -> None:
    for index, expected in zip(folder.indices, folder.digests, strict=True):
        file = example_file(dataset.directory, folder.split, index)
        if digest(_read(dataset, file)) != expected.tobytes():
            raise dataset.damaged(file)


def _stamp_file(dataset: PreparedDataset) -> Path:
    return dataset.directory.parent / "verified" / f"{dataset.directory.name}.json"


def _read_stamp(dataset: PreparedDataset) -> dict[str, list[Any]]:
    """`{folder: [digest of sizes and times, when it was read]}`; empty where there is none that can be used."""
    try:
        content = read_json(_stamp_file(dataset))
        return {name: [str(stat), float(at)] for name, (stat, at) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _write_stamp(dataset: PreparedDataset, stamps: Mapping[str, list[Any]]) -> None:
    # A home that is shared may be read-only here: the next check then reads everything again.
    with contextlib.suppress(OSError):
        write_json(_stamp_file(dataset), stamps)
