"""Which examples are used, and in which split: the validation split carved out of train, and the limit per class."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

from rampline.config import DataConfig
from rampline.data.catalog import CatalogEntry
from rampline.errors import DatasetError


def select(catalog: Sequence[CatalogEntry], class_names: tuple[str, ...], config: DataConfig) -> list[str]:
    """The split of every example of `catalog`, `""` for those left out by `data.limit`.

    Both choices are drawn by the digest of (`split_seed`, content): they do not depend on the order of the files,
    adding an example moves few others, and byte-identical images stay side by side, mostly in the same split.

    Raises:
        DatasetError: when a class has too few training examples to give one to validation and keep one.
    """
    drawn = sorted(range(len(catalog)), key=lambda index: _rank(config.split_seed, catalog[index]))
    splits = [entry.split for entry in catalog]
    if "validation" not in splits:
        for index in _validation_examples(catalog, drawn, class_names, config):
            splits[index] = "validation"
    taken: Counter[tuple[str, int]] = Counter()
    for index in drawn:
        group = (splits[index], catalog[index].label)
        taken[group] += 1
        if config.limit is not None and taken[group] > config.limit:
            splits[index] = ""
    return splits


def _rank(seed: int, entry: CatalogEntry) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed} {entry.sha256}".encode()).digest(), entry.name


def _validation_examples(
    catalog: Sequence[CatalogEntry], drawn: Sequence[int], class_names: tuple[str, ...], config: DataConfig
) -> list[int]:
    """Of each class, the first `validation_fraction` of its training examples in the order drawn."""
    by_class: defaultdict[int, list[int]] = defaultdict(list)
    for index in drawn:
        if catalog[index].split == "train":
            by_class[catalog[index].label].append(index)
    chosen = []
    for label, members in by_class.items():
        if len(members) < 2:
            raise DatasetError(
                f"class {class_names[label]!r} of {config.source} has 1 training image: "
                "at least 2 are needed, one of them for validation"
            )
        share = int(len(members) * config.validation_fraction + 0.5)
        chosen += members[: min(max(share, 1), len(members) - 1)]
    return chosen
