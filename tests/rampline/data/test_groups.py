"""`data.group`: made-up catalogues, small folders and tables; no group is on both sides."""

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from rampline.config import DataConfig
from rampline.data.address import dataset_directory, describe_preprocessing, index_entry
from rampline.data.catalog import CatalogEntry, fingerprint_catalog, select
from rampline.data.quality import read_report
from rampline.errors import ConfigError, DatasetError
from rampline.files import read_json
from rampline.record.home import Home

CLASSES = tuple("abcdef")


def catalog_of(groups, split="train"):
    """`groups`: for each group, its images by label."""
    return [
        CatalogEntry(split=split, name=f"{group}/{label}/{i}", label=label, sha256=f"{group}{label}{i}", group=group)
        for group, counts in groups.items()
        for label, number in counts.items()
        for i in range(number)
    ]


def draw(catalog, tell=print, **values):
    return select(catalog, CLASSES, DataConfig(source="csv:x", group="patient", **values), tell)


def made_up(seed, largest=9):
    """20 to 60 groups of one class each, at least four of every class."""
    generator = random.Random(seed)
    classes = generator.randint(2, 6)
    groups = generator.randint(4 * classes, 60)
    return {f"g{i}": {i % classes: generator.randint(1, largest)} for i in range(groups)}


@pytest.mark.parametrize("seed", range(24))
def test_no_group_is_on_both_sides_and_each_class_has_its_share(seed):
    groups, fraction = made_up(seed), random.Random(seed).choice([0.1, 0.2, 0.35, 0.5])
    catalog = catalog_of(groups) + catalog_of({"tested": {0: 3}}, "test")
    splits = draw(catalog, validation_fraction=fraction, split_seed=seed)
    sides = defaultdict(set)
    for entry, split in zip(catalog, splits, strict=True):
        sides[entry.group].add(split)
    assert {len(found) for found in sides.values()} == {1}
    assert sides["tested"] == {"test"}
    counts = Counter((split, entry.label) for split, entry in zip(splits, catalog, strict=True))
    for label in {label for counts in groups.values() for label in counts}:
        train, validation = counts["train", label], counts["validation", label]
        # No group can change sides and bring the class nearer.
        sizes = [number for held in groups.values() for own, number in held.items() if own == label]
        assert abs(validation - fraction * (train + validation)) <= max(sizes) / 2 + 0.5
        assert min(train, validation) >= 1
    order = list(range(len(catalog)))
    random.Random(seed).shuffle(order)
    assert draw([catalog[i] for i in order], validation_fraction=fraction, split_seed=seed) == [
        splits[i] for i in order
    ]


@pytest.mark.parametrize("seed", range(6))
def test_patients_with_images_of_several_classes(seed):
    generator, told = random.Random(seed), []
    groups = {f"g{i}": {label: generator.randint(1, 5) for label in generator.sample(range(5), 3)} for i in range(60)}
    catalog = catalog_of(groups)
    splits = draw(catalog, told.append, validation_fraction=0.2)
    totals = Counter(entry.label for entry in catalog)
    taken = Counter(entry.label for entry, split in zip(catalog, splits, strict=True) if split == "validation")
    assert all(abs(taken[label] - 0.2 * total) <= 0.02 * total + 1 for label, total in totals.items())
    assert not {e.group for e, s in zip(catalog, splits, strict=True) if s == "validation"} & {
        e.group for e, s in zip(catalog, splits, strict=True) if s == "train"
    }
    assert told == []


def test_groups_of_one_image_are_shared_out_as_images_are():
    catalog = catalog_of({f"g{i}": {i % 2: 1} for i in range(130)})
    assert Counter(zip(draw(catalog), (entry.label for entry in catalog), strict=True)) == {
        ("train", 0): 58,
        ("validation", 0): 7,
        ("train", 1): 58,
        ("validation", 1): 7,
    }


def test_the_share_that_was_reached_is_told_where_it_is_off():
    told = []
    draw(catalog_of({f"g{i}": {i % 2: 100 if i < 4 else 60} for i in range(6)}), told.append)
    assert told == [
        "validation has 23.1% of the training images, and 23.1% of class 'a', instead of 10.0%: "
        "no group is on both sides"
    ]


def test_copies_of_an_image_are_a_group(store, make_folder):
    root = make_folder({"a": 10, "b": 10})
    before = store(source=f"folder:{root}", validation_fraction=0.25)
    for path in sorted(root.rglob("*.*")):
        path.with_stem(f"{path.stem}-copy").write_bytes(path.read_bytes())
    dataset = store(source=f"folder:{root}", validation_fraction=0.25)
    assert dataset.splits == {"train": 32, "validation": 8}
    assert read_report(dataset.directory).leak_lines() == []
    assert before.splits == {"train": 14, "validation": 6}
    # As frames of one scene that two recordings share.
    apart = store(source=f"folder:{root}", validation_fraction=0.25, group=r"(\d+[^.]*)\.")
    assert apart.splits == dataset.splits
    assert read_report(apart.directory).leak_lines() == []
    assert "20 groups have copies of each other's images and count as 10" in "\n".join(store.lines)
    kept = [read_json(one.directory / "manifest.json")["preprocessing"].get("copies") for one in (before, apart)]
    assert kept == [None, "in one split"]


def test_limit_is_drawn_after_the_groups():
    catalog = catalog_of({f"g{i}": {i % 2: 5} for i in range(40)})
    splits = draw(catalog, limit=4)
    assert Counter(splits) == {"train": 8, "validation": 8, "": 184}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (
            {"p": {0: 5, 1: 3}},
            "data.group='patient' puts all training images of csv:x into the group 'p': at least 2 groups",
        ),
        ({"p": {0: 5, 1: 3}, "q": {0: 4}}, "class 'b' of csv:x has training images in the group 'p' alone: at least 2"),
        # Whichever one or two of these become validation, one class is on one side.
        (
            {"p": {0: 1, 1: 1}, "q": {1: 1, 2: 1}, "r": {0: 1, 2: 1}},
            "data.group='patient': no way was found to split the 3 groups of csv:x so that class",
        ),
    ],
)
def test_groups_that_cannot_be_split(groups, message):
    with pytest.raises(DatasetError) as caught:
        draw(catalog_of(groups))
    assert str(caught.value).startswith(message)


def test_datasets_that_were_prepared_without_the_key_keep_their_address():
    catalog = [
        CatalogEntry(split="train", name="a/1", label=0, sha256="00"),
        CatalogEntry(split="test", name="b/2", label=1, sha256="11"),
    ]
    fingerprint, home, config = fingerprint_catalog(catalog, ("a", "b")), Home(root=Path("home")), DataConfig(limit=5)
    preprocessing = describe_preprocessing(config, channels=3, carve_validation=True, is_upright=False)
    # As the release before had it. What led there is another since copies stay together: the source is read once more.
    assert dataset_directory(home, "x", fingerprint, preprocessing).name == "x-06d090e550dbf634"
    assert index_entry(home, config, "stat", None).name == "683388172b2f3433.json"


@pytest.fixture
def bursts(make_folder):
    """Two classes of 12 bursts with 3 images each: `cats/burst03_1.png`."""
    root = make_folder({"cats": 36, "dogs": 36})
    for path in sorted(root.rglob("*.*")):
        number = int(path.stem)
        path.rename(path.with_name(f"burst{number // 3:02d}_{number % 3}{path.suffix}"))
    return root


def test_bursts_of_a_folder(store, bursts):
    values = {"source": f"folder:{bursts}", "group": "([^/]+/burst[0-9]+)_", "validation_fraction": 0.25}
    dataset = store(**values)
    assert dataset.splits == {"train": 54, "validation": 18}
    assert "groups: 18 in train, 6 in validation; none in more than one split" in store.lines
    rows = (dataset.directory / "validation.csv").read_text().splitlines()
    assert rows[0] == '"path","label","group"'
    assert rows[1].startswith('"cats/burst')
    assert rows[1].split(",")[2] == f'"{rows[1][1:13]}"'
    report = read_report(dataset.directory)
    assert report.groups["images"].tolist() == [3] * 24
    assert report.duplicate_lines() == []
    assert store(**values).directory == dataset.directory
    assert store(source=values["source"], validation_fraction=0.25).directory != dataset.directory


def test_the_first_capture_group_that_matches_is_the_group(store, bursts):
    (bursts / "cats/single.png").write_bytes((bursts / "cats/burst00_0.png").read_bytes())
    dataset = store(source=f"folder:{bursts}", group="/burst([0-9]+)_|/(single)")
    assert set(read_report(dataset.directory).groups["group"]) == {*(f"{i:02d}" for i in range(12)), "single"}
    with pytest.raises(DatasetError) as caught:
        store(source=f"folder:{bursts}", group="/burst([0-9]*)_")
    assert str(caught.value) == (
        f"data.group='/burst([0-9]*)_' finds no group in 1 of 73 paths of folder {bursts}, the first is "
        "'cats/single.png'"
    )


def test_a_group_that_the_source_has_on_both_sides_is_a_leak(store, make_folder):
    root = make_folder({f"{split}/{name}": 4 for split in ("train", "val") for name in ("a", "b")})
    dataset = store(source=f"folder:{root}", group="/([0-9]+)[.]")
    report = read_report(dataset.directory)
    assert report.count_lines()[-1] == "groups: 4 in train, 4 in validation; 4 in more than one split"
    assert report.duplicate_lines() == ["4 groups are in more than one split, a leak: 000 and 001, …"]
    assert "## Groups in more than one split (leakage): 4\n\n| group | split | images |" in report.to_markdown()


@pytest.fixture
def table(bursts):
    """`write(patient_of)`: a table of the images, in which `patient_of(number)` names the patient."""

    def write(patient_of, header="patient id"):
        paths = sorted(str(path.relative_to(bursts)) for path in bursts.rglob("*.*"))
        rows = [
            f"{path},{path[:4]},{patient_of(number)}"
            for number, path in enumerate(p for p in paths if p[-4:] != ".csv")
        ]
        (bursts / "table.csv").write_text("\n".join([f"path,label,{header}", *rows]) + "\n")
        return f"csv:{bursts}/table.csv"

    return write


def test_a_column_of_a_table(store, table):
    values = {"source": table(lambda number: f"00{number % 9}"), "group": "patient id", "validation_fraction": 0.25}
    dataset = store(**values)
    report = read_report(dataset.directory)
    assert sorted(report.groups["group"]) == [f"00{i}" for i in range(9)]
    assert dataset.splits == {"train": 56, "validation": 16}
    table(lambda number: f"00{number % 12}")
    again = store(**values)
    assert again.directory != dataset.directory
    assert again.splits == {"train": 54, "validation": 18}


@pytest.mark.parametrize(
    ("patient_of", "header", "message"),
    [
        (
            lambda number: "p",
            "person",
            r"data.group='patient id' is not allowed: csv /.* has the columns path, label, person$",
        ),
        (
            lambda number: "p" if number else " ",
            "patient id",
            r"line 2: patient id='' is not allowed: .* a non-empty text",
        ),
    ],
)
def test_wrong_columns(store, table, patient_of, header, message):
    with pytest.raises(DatasetError, match=message):
        store(source=table(patient_of, header), group="patient id")


def test_files_by_lists_are_a_table_with_splits(store, bursts):
    """An image that is on no list is left out; one that is on two of them is a leak."""
    lists = {"train": range(10), "validation": (10,), "test": (11, 0)}
    rows = [
        f"{path.relative_to(bursts)},{path.parent.name},{split}"
        for split, numbers in lists.items()
        for number in numbers
        for path in sorted(bursts.rglob(f"burst{number:02d}_[12].*"))
    ]
    (bursts / "lists.csv").write_text("\n".join(["path,label,split", *rows]))
    dataset = store(source=f"csv:{bursts}/lists.csv")
    assert dataset.splits == {"train": 40, "validation": 4, "test": 8}
    assert read_report(dataset.directory).leak_lines() == [
        "4 images are in more than one split, a leak: cats/burst00_1.jpg and cats/burst00_1.jpg, …"
    ]


@pytest.mark.parametrize(
    ("source", "group", "allowed"),
    [
        ("digits", "(.)", "left out unless data.source is csv:PATH, folder:PATH or url:URL"),
        ("folder:x", "patient", "a regular expression with a capture group, such as '([^/]+)_', for folder:"),
        ("folder:x", "(patient", "a regular expression with a capture group, such as '([^/]+)_', for folder:"),
        (
            "url:https://x/a.zip",
            "(a){99999999999}",
            "a regular expression with a capture group, such as '([^/]+)_', for url:",
        ),
        ("csv:x", 5, "a column of the table, a regular expression with a capture group, or null"),
    ],
)
def test_groups_that_are_refused(source, group, allowed):
    with pytest.raises(ConfigError) as caught:
        DataConfig(source=source, group=group)
    assert str(caught.value) == f"data.group={group!r} is not allowed: it must be {allowed}"
