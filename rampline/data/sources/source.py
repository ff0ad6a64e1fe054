"""What every source yields: examples by split, read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One labelled image of a source.

    Attributes:
        name: what identifies it to a person: a path relative to the source, or an index.
        label: index into the source's class names.
        read: gives the encoded image (JPEG, PNG, …), so that others can do the reading: threads, or worker processes
            where the source says so.
    """

    name: str
    label: int
    read: Callable[[], bytes]


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
        splits: some of `train`, `validation`, `test`; `train` always.
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
