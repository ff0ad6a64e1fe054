"""What every source yields: examples by split, read one at a time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rampline.errors import DatasetError

# Takes lines for the user while a source is opened.
Tell = Callable[[str], None]
MOST_NAMED = 20  # classes, of which an error names all


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One labelled image of a source.

    Attributes:
        name: what identifies it to a person: a path relative to the source, or an index.
        label: index into the source's class names.
        read: gives the encoded image (JPEG, PNG, …), so that others can do the reading: threads, or worker processes
            where the source says so.
        group: of the images that `data.group` keeps together; `""` without.
    """

    name: str
    label: int
    read: Callable[[], bytes]
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class SourceSplit:
    """One split of a source: how many examples, and a function that goes through them, each time in the same order."""

    examples: int
    iterate: Callable[[], Iterator[Example]]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A readable source of labelled images.

    Attributes:
        class_names: name of every label.
        channels: channels that images get where the configuration leaves them open: 1 or 3.
        splits: some of `train`, `validation`, `test`; `train` always, but for evaluation data.
        stat_fingerprint: the module's `stat_fingerprint` at the moment when the source was opened.
        notes: what was left out and why, one line each.
        read_anywhere: whether examples can be pickled, and listing and reading them runs no TensorFlow: worker
            processes may be forked then, and do the reading.
    """

    class_names: tuple[str, ...]
    channels: int
    splits: dict[str, SourceSplit]
    stat_fingerprint: str
    notes: tuple[str, ...] = ()
    read_anywhere: bool = False

    @property
    def examples(self) -> int:
        """Examples in all splits."""
        return sum(split.examples for split in self.splits.values())


def path_of(source: str) -> Path:
    """The path in `data.source`, absolute; a user of the name behind `~` need not be known."""
    return _written_path(source).absolute()


def has_absolute_path(source: str) -> bool:
    """Whether the path in `data.source` is the same in every working folder."""
    return _written_path(source).is_absolute()


def _written_path(source: str) -> Path:
    return Path(os.path.expanduser(source.partition(":")[2]))


def as_test_images(source: Source, class_names: tuple[str, ...], origin: str) -> Source:
    """The images of `source` to score a model on, all in `test`, with the labels that the model gives.

    They are the test split where there is one, else the validation split, else all images.

    Args:
        source: an open source, of which only some classes may be there.
        class_names: those that the model was trained on, in the order of its labels.
        origin: what to name in an error.

    Raises:
        DatasetError: when the source has no image, or a class that the model does not know.
    """
    unknown = [name for name in source.class_names if name not in class_names]
    if unknown:
        more = f" and {len(class_names) - MOST_NAMED} others" if len(class_names) > MOST_NAMED else ""
        known = ", ".join(class_names[:MOST_NAMED]) + more
        raise DatasetError(f"{origin} has the class {unknown[0]!r}, which the run was not trained on: it knows {known}")
    name = next((name for name in ("test", "validation", "train") if name in source.splits), None)
    if name is None:
        raise DatasetError(f"{origin} has no image to score")
    labels = [class_names.index(name) for name in source.class_names]
    split, left_out = source.splits[name], source.examples - source.splits[name].examples
    note = f"{split.examples} images of the split {name!r} are scored, {left_out} of other splits are not"
    return dataclasses.replace(
        source,
        class_names=class_names,
        splits={"test": SourceSplit(examples=split.examples, iterate=partial(_iterate_relabelled, split, labels))},
        notes=(*source.notes, note) if left_out else source.notes,
    )


def _iterate_relabelled(split: SourceSplit, labels: Sequence[int]) -> Iterator[Example]:
    for example in split.iterate():
        yield dataclasses.replace(example, label=labels[example.label])
