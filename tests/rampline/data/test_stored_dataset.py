"""Prepared data in an object store: another home fetches it, by the source's index or by its content."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from folder_content import read_tree
from s3_server import S3
from stored_data import store_here

from rampline.config import DataConfig
from rampline.data.integrity import check_intact
from rampline.data.preparation import prepare_dataset
from rampline.data.stored_dataset import put_dataset
from rampline.record.home import Home

DIGITS = DataConfig(limit=12)


@pytest.mark.usefixtures("forks")
@pytest.mark.long
def test_another_home_fetches_what_was_prepared(s3: S3, tmp_path: Path) -> None:
    said: dict[str, list[str]] = {name: [] for name in "abc"}
    homes = {name: Home(root=tmp_path / name) for name in "abc"}
    first = prepare_dataset(DIGITS, homes["a"], log=said["a"].append)
    name = first.directory.name
    assert said["a"][-1] == f"put {name} into {s3.url}"
    second = prepare_dataset(DIGITS, homes["b"], log=said["b"].append)
    assert said["b"] == [f"fetched {name} from {s3.url}", f"prepared already: {second.directory}"]
    assert read_tree(second.directory) == read_tree(first.directory)
    check_intact(second, everything=True)
    # Damaged there, it is prepared, and put there again.
    s3.overwrite(f"data/{name}/train_labels.npy", b"damaged")
    third = prepare_dataset(DIGITS, homes["c"], log=said["c"].append)
    assert said["c"][0].startswith(f"warning: {name} cannot be fetched from {s3.url}: ")
    assert said["c"][-1] == f"put {name} into {s3.url}"
    assert read_tree(third.directory) == read_tree(first.directory)


def test_the_same_images_are_decoded_once(make_folder: Callable, store, s3: S3, tmp_path: Path) -> None:
    """Copies have other times, so that the index does not know them; their content does."""
    folder = make_folder({"train/cats": 4, "train/dogs": 4})
    first = store(source=f"folder:{folder}", image_size=8)
    put_dataset(first, print)
    other = shutil.copytree(folder, tmp_path / "elsewhere" / "images")
    for path in other.rglob("*.*"):
        os.utime(path, (1e9, 1e9))
    lines: list[str] = []
    config = DataConfig(source=f"folder:{other}", image_size=8)
    second = store_here(config, Home(root=tmp_path / "b"), log=lines.append).directory
    assert f"fetched {second.name} from {s3.url}" in lines
    assert read_tree(second) == read_tree(first.directory)


@pytest.mark.long
def test_data_is_prepared_while_the_store_is_away(s3: S3, tmp_path: Path, forks: None) -> None:
    lines: list[str] = []
    s3.stop()
    try:
        prepare_dataset(DIGITS, Home(root=tmp_path / "a"), log=lines.append)
    finally:
        s3.start()
    assert lines[0].startswith(f"warning: {s3.url} does not answer: ")
    assert " cannot be put into " in lines[-1]
