import random
from collections import Counter

import pytest

from rampline.config import DataConfig
from rampline.data.catalog import CatalogEntry, select
from rampline.errors import DatasetError

CLASSES = ("a", "b", "c")


def catalog_of(counts):
    return [
        CatalogEntry(split=split, name=f"{split}/{label}/{index}", label=label, sha256=f"{split}{label}{index}")
        for (split, label), number in counts.items()
        for index in range(number)
    ]


def count(catalog, splits):
    return Counter((split, entry.label) for split, entry in zip(splits, catalog, strict=True) if split)


def test_validation_is_stratified():
    catalog = catalog_of({("train", 0): 100, ("train", 1): 40, ("train", 2): 3, ("test", 0): 5})
    splits = select(catalog, CLASSES, DataConfig(validation_fraction=0.2), print)
    assert count(catalog, splits) == {
        ("train", 0): 80,
        ("validation", 0): 20,
        ("train", 1): 32,
        ("validation", 1): 8,
        ("train", 2): 2,
        ("validation", 2): 1,
        ("test", 0): 5,
    }


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_every_class_keeps_one_on_either_side(fraction):
    catalog = catalog_of({("train", 0): 2, ("train", 1): 9})
    counted = count(catalog, select(catalog, CLASSES, DataConfig(validation_fraction=fraction), print))
    assert min(counted.values()) == 1
    assert len(counted) == 4


def test_a_validation_split_of_the_source_is_kept():
    catalog = catalog_of({("train", 0): 9, ("validation", 0): 4})
    assert select(catalog, CLASSES, DataConfig(), print) == ["train"] * 9 + ["validation"] * 4


def test_limit_counts_per_class_and_split():
    catalog = catalog_of({("train", 0): 100, ("train", 1): 6, ("test", 0): 30, ("test", 1): 2})
    splits = select(catalog, CLASSES, DataConfig(limit=5, validation_fraction=0.1), print)
    assert count(catalog, splits) == {
        ("train", 0): 5,
        ("train", 1): 5,
        ("validation", 0): 5,
        ("validation", 1): 1,
        ("test", 0): 5,
        ("test", 1): 2,
    }


def test_the_choice_depends_on_the_seed_alone():
    catalog = catalog_of({("train", 0): 60, ("train", 1): 60})
    chosen = {}
    for seed in (0, 0, 1):
        random.Random(len(chosen)).shuffle(catalog)
        splits = select(catalog, CLASSES, DataConfig(limit=20, split_seed=seed), print)
        names = {(entry.name, split) for entry, split in zip(catalog, splits, strict=True)}
        assert chosen.setdefault(seed, names) == names
    assert chosen[0] != chosen[1]


def test_one_training_image_is_not_enough():
    catalog = catalog_of({("train", 0): 5, ("train", 1): 1})
    with pytest.raises(DatasetError, match=r"class 'b' of digits has 1 training image: at least 2 are needed"):
        select(catalog, CLASSES, DataConfig(), print)


def copies(*images: tuple[str, int, int]) -> list[CatalogEntry]:
    """`(content, label, number)`: so many training images that are the same."""
    return [
        CatalogEntry(split="train", name=f"{label}/{content}{index}", label=label, sha256=content)
        for content, label, number in images
        for index in range(number)
    ]


SOME_TWICE = copies(("m", 0, 1), ("m", 1, 1), *((f"x{i}", i % 2, 1 + i % 5 // 4) for i in range(90)))
# More of each than the class is to give.
TWENTY_TIMES = copies(*((f"x{i}", 0, 20) for i in range(5)), *((f"y{i}", 1, 1) for i in range(100)))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("catalog, validation", [(SOME_TWICE, (6, 6)), (TWENTY_TIMES, (20, 10))])
def test_copies_of_an_image_are_on_one_side(catalog, validation, seed):
    catalog = random.Random(seed).sample(catalog, len(catalog))
    splits = select(catalog, CLASSES, DataConfig(split_seed=seed), print)
    sides = {(entry.sha256, split) for entry, split in zip(catalog, splits, strict=True)}
    assert len(sides) == len({entry.sha256 for entry in catalog})
    counted = count(catalog, splits)
    assert (counted["validation", 0], counted["validation", 1]) == validation


def test_a_class_of_one_image_and_its_copies_has_it_on_both_sides():
    catalog = copies(("x", 0, 1), ("y", 0, 1), ("z", 1, 20), ("z", 2, 3))
    counted = count(catalog, select(catalog, CLASSES, DataConfig(), print))
    assert [counted["validation", label] for label in range(3)] == [1, 2, 1]
