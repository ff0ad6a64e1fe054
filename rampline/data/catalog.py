"""The catalog of a source: an entry per example, with the sha256 of its content, and the fingerprint of it all."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rampline.config import DataConfig
from rampline.data.groups import draw_validation_groups
from rampline.data.orientation import UPRIGHT, read_orientation
from rampline.data.parallel import MapInOrder, in_chunks
from rampline.data.sources.source import Example, Source, Tell

_CHUNK = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class CatalogEntry:
    """What is kept of an `Example`, of a split of its source, while its image is not in memory."""

    split: str
    name: str
    label: int
    sha256: str  # of the encoded image
    orientation: int = UPRIGHT
    has_16_bits: bool = False  # a channel, of which the decoder uses the upper 8
    group: str = ""


def read_catalog(source: Source, on_progress: Callable[[int], None], map_in_order: MapInOrder) -> list[CatalogEntry]:
    """Read every example of `source` once, in its order; `on_progress` is told how many have been read."""
    catalog: list[CatalogEntry] = []
    for split, examples in source.splits.items():
        digest = functools.partial(_digest_chunk, split)
        for chunk in map_in_order(digest, in_chunks(examples.iterate(), _CHUNK)):
            catalog += chunk
            on_progress(len(catalog))
    return catalog


def _digest_chunk(split: str, examples: list[Example]) -> list[CatalogEntry]:
    return [_digest(split, example) for example in examples]


def _digest(split: str, example: Example) -> CatalogEntry:
    encoded = example.read()
    return CatalogEntry(
        split=split,
        name=example.name,
        label=example.label,
        sha256=hashlib.sha256(encoded).hexdigest(),
        orientation=read_orientation(encoded),
        has_16_bits=_has_16_bits(encoded),
        group=example.group,
    )


def _has_16_bits(encoded: bytes) -> bool:
    """Whether it is a PNG of 16 bits a channel: that stands in its first chunk."""
    return encoded.startswith(b"\x89PNG\r\n\x1a\n") and encoded[24:25] == b"\x10"


def fingerprint_catalog(catalog: Iterable[CatalogEntry], class_names: tuple[str, ...]) -> str:
    """sha256 over split, class, name, content and any group of every example, and over the class names in order."""
    digest = hashlib.sha256("\0".join(class_names).encode())
    for entry in catalog:
        parts = (entry.split, class_names[entry.label], entry.name, entry.sha256, *filter(None, [entry.group]))
        digest.update("\0".join(parts).encode() + b"\n")
    return digest.hexdigest()


def select(catalog: Sequence[CatalogEntry], class_names: tuple[str, ...], config: DataConfig, tell: Tell) -> list[str]:
    """The split of every example of `catalog`, `""` for those left out by `data.limit`.

    Both choices are drawn by the digest of (`split_seed`, content): they do not depend on the order of the files,
    adding an example moves few others. What becomes validation are whole groups: of `data.group`, else the copies of an
    image, see `draw_validation_groups`, which `tell` gets a line of. Groups that share an image are one.

    Raises:
        DatasetError: when a class has too few training examples, or groups, to give one to validation and keep one.
    """
    drawn = sorted(range(len(catalog)), key=lambda index: _rank(config.split_seed, catalog[index]))
    splits = [entry.split for entry in catalog]
    if "validation" not in splits:
        candidates = [one for one in catalog if one.split == "train"]
        contents = Counter(label for label, _ in {(one.label, one.sha256) for one in candidates})
        united = _unite(candidates, config, tell) if config.group else {}
        groups = [_group(one, contents[one.label], united) if one.split == "train" else "" for one in catalog]
        trained = ((group, one.label) for group, one in zip(groups, catalog, strict=True) if group)
        chosen = draw_validation_groups(trained, class_names, config, tell)
        splits = ["validation" if group in chosen else split for group, split in zip(groups, splits, strict=True)]
    taken: Counter[tuple[str, int]] = Counter()
    for index in drawn:
        group = (splits[index], catalog[index].label)
        taken[group] += 1
        if config.limit is not None and taken[group] > config.limit:
            splits[index] = ""
    return splits


def _unite(entries: Sequence[CatalogEntry], config: DataConfig, tell: Tell) -> dict[str, str]:
    """What each group of `data.group` counts as: the first by name of those that copies of images connect it to."""
    from scipy.cluster.hierarchy import DisjointSet  # half a second, and few have groups

    connected, holders = DisjointSet(one.group for one in entries), dict[str, str]()
    for one in entries:
        connected.merge(one.group, holders.setdefault(one.sha256, one.group))
    if shared := [subset for subset in connected.subsets() if len(subset) > 1]:
        count = sum(map(len, shared))
        tell(
            f"data.group={config.group!r}: {count} groups have copies of each other's images and count as {len(shared)}"
        )
    return {group: min(subset) for subset in connected.subsets() for group in subset}


def _group(entry: CatalogEntry, contents: int, united: Mapping[str, str]) -> str:
    """Copies stay together, unless there is no other content in the class."""
    return united.get(entry.group) or (entry.sha256 if contents > 1 else f"{entry.sha256} {entry.name}")


def _rank(seed: int, entry: CatalogEntry) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed} {entry.sha256}".encode()).digest(), entry.name
