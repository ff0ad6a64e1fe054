"""The catalog of a source: an entry per example, with the sha256 of its content, and the fingerprint of it all."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rampline.data.orientation import UPRIGHT, read_orientation
from rampline.data.parallel import MapInOrder, in_chunks
from rampline.data.sources.source import Example, Source

_CHUNK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogEntry:
    """What is kept of an example while its image is not in memory.

    Attributes:
        split: the source's.
        name: see `Example`.
        label: see `Example`.
        sha256: of the encoded image, hex.
        orientation: see `read_orientation`.
    """

    split: str
    name: str
    label: int
    sha256: str
    orientation: int = UPRIGHT


def read_catalog(source: Source, on_progress: Callable[[int], None], map_in_order: MapInOrder) -> list[CatalogEntry]:
    """Read every example of `source` once, in the order in which it yields them.

    Args:
        source: an open source.
        on_progress: is told how many examples have been read.
        map_in_order: who reads.
    """
    catalog: list[CatalogEntry] = []
    for split, examples in source.splits.items():
        for chunk in map_in_order(_digest_chunk, in_chunks(examples.iterate(), _CHUNK)):
            catalog += (
                CatalogEntry(split=split, name=name, label=label, sha256=sha256, orientation=orientation)
                for name, label, sha256, orientation in chunk
            )
            on_progress(len(catalog))
    return catalog


def _digest_chunk(examples: list[Example]) -> list[tuple[str, int, str, int]]:
    contents = ((example, example.read()) for example in examples)
    return [
        (example.name, example.label, hashlib.sha256(content).hexdigest(), read_orientation(content))
        for example, content in contents
    ]


def fingerprint_catalog(catalog: Iterable[CatalogEntry], class_names: tuple[str, ...]) -> str:
    """sha256 over split, class, name and content of every example, and over the class names in order."""
    digest = hashlib.sha256("\0".join(class_names).encode())
    for entry in catalog:
        line = "\0".join((entry.split, class_names[entry.label], entry.name, entry.sha256)) + "\n"
        digest.update(line.encode())
    return digest.hexdigest()
