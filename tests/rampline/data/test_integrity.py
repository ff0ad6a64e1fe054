"""Damage to a prepared dataset, each kind on a real one: found, and the file named."""

import dataclasses
import json
import os
import shutil

import numpy as np
import pytest

from rampline.data import integrity, storage
from rampline.data.dataset import FORMAT_VERSION, PreparedDataset
from rampline.data.integrity import check_intact
from rampline.errors import DatasetError

CACHES = ("memory", "disk", "none")
IMAGES = {"train/a": 4, "train/b": 4, "validation/a": 2, "validation/b": 2}


@pytest.fixture(scope="module")
def original(prepare_once):
    """A home, and where the same images are in it for every cache."""
    return prepare_once(IMAGES, CACHES)


@pytest.fixture
def prepared(original, home):
    """`prepared(cache)` opens the dataset in a copy of that home."""
    root, directories = original
    shutil.copytree(root, home.root)
    return lambda cache: PreparedDataset.open(home.root / directories[cache])


def flip_bit(path, at):
    """Flip a bit under an unchanged time, as a failing disk does."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def refusal(dataset, **options):
    with pytest.raises(DatasetError) as caught:
        check_intact(dataset, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def expected(dataset, name):
    return f"{dataset.directory / name} is not as it was prepared: delete {dataset.directory}, and it is prepared again"


@pytest.mark.parametrize("cache", CACHES)
def test_an_intact_dataset_passes(prepared, cache):
    dataset = prepared(cache)
    for _ in range(2):
        check_intact(dataset)
    read = []
    check_intact(dataset, everything=True, advance=lambda: read.append(cache))
    # Two splits: of each a block, or a folder whose sizes are looked at, and then its files.
    assert len(read) == (2 if cache == "memory" else 4)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("is_known", [False, True], ids=["first check", "second check"])
def test_a_flipped_bit_in_an_image(prepared, cache, is_known):
    dataset = prepared(cache)
    if is_known:
        check_intact(dataset)
    name = "train_images.bin" if cache == "memory" else "train/00000/00000005"
    flip_bit(dataset.directory / name, 100)
    assert refusal(dataset) == expected(dataset, name)


@pytest.mark.parametrize("at", [pytest.param(-1, marks=pytest.mark.long), 130])
@pytest.mark.parametrize(
    "name", ["train_labels.npy", "validation_digests.npy", "data_report.csv", "data_report.json", "duplicates.csv"]
)
def test_a_flipped_bit_in_what_describes_the_images(prepared, name, at):
    dataset = prepared("none")
    flip_bit(dataset.directory / name, min(at, (dataset.directory / name).stat().st_size - 1))
    assert refusal(dataset) == expected(dataset, name)


@pytest.mark.parametrize(
    "cache", ["memory", pytest.param("disk", marks=pytest.mark.long), pytest.param("none", marks=pytest.mark.long)]
)
def test_every_bit_of_the_manifest_counts(prepared, cache):
    dataset = prepared(cache)
    file = dataset.directory / "manifest.json"
    content = file.read_bytes()
    for at in range(0, len(content), 7):
        changed = bytearray(content)
        changed[at] ^= 4
        file.write_bytes(changed)
        try:
            if json.loads(changed) == json.loads(content):  # white space is no content
                continue
        except ValueError:
            pass
        assert refusal(dataset) == expected(dataset, "manifest.json")


def test_an_edited_manifest(prepared):
    dataset = prepared("memory")
    file = dataset.directory / "manifest.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps({**manifest, "class_names": ["b", "a"]}))
    assert refusal(dataset) == expected(dataset, "manifest.json")
    for broken in (
        "[]",
        "",
        json.dumps({**manifest, "splits": {"../train": 8}}),
        json.dumps({"format_version": FORMAT_VERSION}),
    ):
        file.write_text(broken)
        with pytest.raises(DatasetError, match=r"manifest.json is damaged|holds no prepared dataset"):
            PreparedDataset.open(dataset.directory)


@pytest.mark.parametrize("cache", CACHES)
def test_a_truncated_file(prepared, cache):
    dataset = prepared(cache)
    name = "validation_images.bin" if cache == "memory" else "validation/00000/00000001"
    os.truncate(dataset.directory / name, 50)
    assert refusal(dataset) == expected(dataset, name)


@pytest.mark.parametrize("name", ["train/00000/00000003", "train_labels.npy", "undecodable.csv", "manifest.json"])
def test_a_deleted_file(prepared, name):
    dataset = prepared("disk")
    check_intact(dataset)
    (dataset.directory / name).unlink()
    assert refusal(dataset) == expected(dataset, name)


def test_two_examples_that_are_swapped(prepared):
    dataset = prepared("disk")
    first, second = (dataset.directory / f"train/00000/0000000{i}" for i in (0, 7))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert refusal(dataset) == expected(dataset, "train/00000/00000000")


def test_blocks_of_a_large_images_file(store, make_folder, monkeypatch):
    for module in (integrity, storage):
        monkeypatch.setattr(module, "BLOCK_BYTES", 100)
    dataset = store(source=f"folder:{make_folder(IMAGES)}", image_size=8)
    assert np.load(dataset.directory / "train_digests.npy").shape == (16, 16)  # 8 images of 192 bytes
    check_intact(dataset)
    flip_bit(dataset.images_file("train"), 8 * 192 - 1)
    assert refusal(dataset) == expected(dataset, "train_images.bin")


def test_what_is_too_large_is_read_in_turn(prepared, monkeypatch):
    monkeypatch.setattr(integrity, "REREAD_BYTES", 1)
    dataset = prepared("none")
    check_intact(dataset)
    flip_bit(dataset.directory / "validation/00000/00000001", 60)
    check_intact(dataset)  # reads train again, which was read first
    assert refusal(dataset) == expected(dataset, "validation/00000/00000001")
    assert refusal(dataset, everything=True) == expected(dataset, "validation/00000/00000001")
    os.utime(dataset.directory / "validation/00000/00000001")
    assert refusal(dataset) == expected(dataset, "validation/00000/00000001")


def test_a_damaged_stamp_and_a_folder_that_cannot_be_written_cost_time_only(prepared, home):
    dataset = prepared("disk")
    check_intact(dataset)
    (stamp,) = (home.data / "verified").iterdir()
    for content in ("[1]", "{", '{"train/00000": 3}'):
        stamp.write_text(content)
        check_intact(dataset)
    stamp.unlink()
    stamp.parent.rmdir()
    stamp.parent.touch()  # no folder can be made there
    check_intact(dataclasses.replace(dataset))


def test_a_damaged_dataset_that_is_deleted_is_prepared_again(store, make_folder):
    values = {"source": f"folder:{make_folder(IMAGES)}", "image_size": 8, "cache": "none"}
    dataset = store(**values)
    flip_bit(dataset.directory / "train/00000/00000001", 60)
    refusal(dataset)
    shutil.rmtree(dataset.directory)
    assert store(**values).directory == dataset.directory
    check_intact(dataset)
