"""Examples that are files: what `folder:` and `csv:` have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rampline.data.dataset import SPLITS
from rampline.data.sources.source import Example, Source, SourceSplit
from rampline.errors import DatasetError

FILE_CHANNELS = 3
# Other spellings of `validation`, as people name it.
SPLIT_NAMES = {"train": "train", "validation": "validation", "val": "validation", "valid": "validation", "test": "test"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageFile:
    """One image file, what it shows, and its size and time of change at the moment it was listed.

    There is one for every image of a source: `path` is a text, because a `Path` takes ten times its memory.
    """

    split: str
    class_name: str
    name: str
    path: str
    size_bytes: int
    modified_nanoseconds: int


def files_fingerprint(files: Iterable[ImageFile]) -> str:
    """A quick fingerprint, from sizes and times instead of content: equal means that nothing was touched since."""
    digest = hashlib.sha256()
    for file in files:
        parts = (file.split, file.class_name, file.name, str(file.size_bytes), str(file.modified_nanoseconds))
        digest.update("\0".join(parts).encode() + b"\n")
    return digest.hexdigest()


def files_source(files: Sequence[ImageFile], *, origin: str, notes: tuple[str, ...] = ()) -> Source:
    """A source of `files`; labels are the class names of `train`, sorted.

    Args:
        files: in the order in which they are to be stored.
        origin: what to name in an error.
        notes: see `Source`.

    Raises:
        DatasetError: without a train split, with fewer than two classes, or with a class that `train` does not have.
    """
    by_split = {split: [file for file in files if file.split == split] for split in SPLITS}
    class_names = sorted({file.class_name for file in by_split["train"]})
    if len(class_names) < 2:
        found = f"only the class {class_names[0]!r}" if class_names else "no training image"
        raise DatasetError(f"{origin} has {found}: at least two classes with training images are needed")
    for split, members in by_split.items():
        unknown = sorted({file.class_name for file in members} - set(class_names))
        if unknown:
            raise DatasetError(
                f"{origin} has the class {unknown[0]!r} in {split} but not in train: every class needs training images"
            )
    labels = {name: label for label, name in enumerate(class_names)}
    splits = {
        split: SourceSplit(examples=len(members), iterate=partial(_iterate, members, labels))
        for split, members in by_split.items()
        if members
    }
    return Source(
        class_names=tuple(class_names),
        channels=FILE_CHANNELS,
        splits=splits,
        stat_fingerprint=files_fingerprint(files),
        notes=notes,
        read_anywhere=True,
    )


def _iterate(files: Sequence[ImageFile], labels: dict[str, int]) -> Iterator[Example]:
    for file in files:
        yield Example(name=file.name, label=labels[file.class_name], read=partial(_read, file.path))


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
