"""Examples that are files: what `folder:` and `csv:` have in common."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rampline.data.dataset import SPLITS
from rampline.data.sources.source import MOST_NAMED, Example, Source, SourceSplit
from rampline.errors import DatasetError

FILE_CHANNELS = 3
# What splits are called, in any case and with a word behind: `Train`, `test_set`, `ValidationImages`.
_SPLIT_WORDS = {"train": "train|training", "validation": "val|valid|validation", "test": "test|testing"}
_SPLIT_NAMES = {
    split: re.compile(f"({words})([ _-]?(set|data|images))?", re.IGNORECASE) for split, words in _SPLIT_WORDS.items()
}
# Such a word in a longer name: `seg_train`, `train2017`.
_SPLIT_WORD = re.compile(
    r"(?<![a-z])(train(ing)?|val(id(ation|ate)?)?|test(ing)?|eval(uation)?)(?![a-z])", re.IGNORECASE
)
SPLIT_ALLOWED = "train, validation (or val, valid) and test"


def split_called(name: str) -> str | None:
    """`train`, `validation` or `test` where that is what `name` means."""
    return next((split for split, names in _SPLIT_NAMES.items() if names.fullmatch(name)), None)


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
    group: str = ""


def files_fingerprint(files: Iterable[ImageFile]) -> str:
    """A quick fingerprint, from sizes and times instead of content: equal means that nothing was touched since."""
    digest = hashlib.sha256()
    for file in files:
        parts = (file.split, file.class_name, file.name, str(file.size_bytes), str(file.modified_nanoseconds))
        digest.update("\0".join((*parts, *filter(None, [file.group]))).encode() + b"\n")
    return digest.hexdigest()


def files_source(
    files: Sequence[ImageFile], *, origin: str, notes: tuple[str, ...] = (), for_training: bool = True
) -> Source:
    """A source of `files` in their order, which errors call `origin`; labels are the class names, sorted.

    Raises:
        DatasetError: with classes that are called as splits are; for a training, without a train split, with fewer than
            two classes, or with a class that `train` does not have.
    """
    by_split = {split: [file for file in files if file.split == split] for split in SPLITS}
    class_names = sorted({file.class_name for file in files})
    _refuse_splits_as_classes(class_names, origin)
    if for_training:
        _check_trainable(by_split, class_names, origin)
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
        notes=(*notes, *_tell_of_alike(class_names)),
        read_anywhere=True,
    )


def _check_trainable(by_split: Mapping[str, Sequence[ImageFile]], class_names: Sequence[str], origin: str) -> None:
    trained = {file.class_name for file in by_split["train"]}
    if len(trained) < 2:
        found = f"only the class {min(trained)!r}" if trained else "no training image"
        raise DatasetError(f"{origin} has {found}: at least two classes with training images are needed")
    for name in class_names:
        if name not in trained:
            split = next(split for split, files in by_split.items() if any(file.class_name == name for file in files))
            raise DatasetError(
                f"{origin} has the class {name!r} in {split} but not in train: every class needs training images"
            )


def _refuse_splits_as_classes(class_names: Sequence[str], origin: str) -> None:
    # One such class may be meant: a train is also a vehicle.
    found = [name for name in class_names if split_called(name)]
    alike: dict[str, list[str]] = {}
    for name in class_names:
        if _SPLIT_WORD.search(name):
            alike.setdefault(_SPLIT_WORD.sub("", name), []).append(name)
    found = next((names for names in (found, *alike.values()) if len(names) > 1), [])
    if found:
        raise DatasetError(
            f"{origin} has the classes {found[0]!r} and {found[1]!r}, which are names of splits: write "
            "train/CLASS/1.jpg and test/CLASS/1.jpg, or in a table the split into the column 'split'"
        )


def _tell_of_alike(class_names: Sequence[str]) -> tuple[str, ...]:
    """A line where classes differ in case, or in how an accent is stored, alone."""
    read = {name: unicodedata.normalize("NFKC", name).casefold() for name in class_names}
    times = Counter(read.values())
    alike = [name for name in class_names if times[read[name]] > 1]
    return (f"classes that read alike are told apart: {', '.join(map(repr, alike[:MOST_NAMED]))}",) if alike else ()


def _iterate(files: Sequence[ImageFile], labels: dict[str, int]) -> Iterator[Example]:
    for file in files:
        yield Example(name=file.name, label=labels[file.class_name], read=partial(_read, file.path), group=file.group)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
