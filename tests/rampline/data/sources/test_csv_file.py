import gzip
import os
from pathlib import Path

import pytest

from rampline.config import DataConfig
from rampline.data.sources import csv_file
from rampline.errors import DatasetError


def open_table(path):
    return csv_file.open_source(DataConfig(source=f"csv:{path}"), Path())


@pytest.fixture
def folder(make_folder):
    return make_folder({"x": 6})


def test_paths_are_relative_to_the_table_or_absolute(folder, tmp_path):
    table = folder / "table.csv"
    table.write_text(f"label, path,extra\nNA,x/000.png,1\n007,../images/x/001.jpg,2\nN\x1bA,{folder}/x/002.png,3\n")
    source = open_table(table)
    assert source.class_names == ("007", "NA", r"N\x1bA")
    examples = list(source.splits["train"].iterate())
    assert [example.label for example in examples] == [1, 0, 2]
    assert [example.read() for example in examples] == [
        path.read_bytes() for path in sorted((folder / "x").iterdir())[:3]
    ]


@pytest.mark.parametrize("path", ["../secret.png", "{outside}", "x/../../secret.png", "x/link.png", "y/secret.png"])
def test_a_path_that_leads_outside(folder, make_image, path):
    secret = folder.parent / "secret.png"
    secret.write_bytes(make_image(1))
    (folder / "x/link.png").symlink_to(secret)
    (folder / "y").symlink_to(folder.parent)
    table = folder / "table.csv"
    table.write_text(f"path,label\nx/000.png,a\n{path.format(outside=secret)},b\n")
    with pytest.raises(DatasetError) as caught:
        open_table(table)
    assert str(caught.value).endswith(f" leads to {secret}, outside {folder}: images must lie inside")


@pytest.mark.parametrize("path", ["x", "pipe", "."])
def test_a_path_of_no_image(folder, path):
    os.mkfifo(folder / "pipe")
    (folder / "table.csv").write_text(f"path,label\nx/000.png,a\n{path},b\n")
    with pytest.raises(DatasetError, match=r"is no regular file: images must be files|leads to .*outside"):
        open_table(folder / "table.csv")


def test_splits(folder):
    table = folder / "table.csv"
    rows = ["x/000.png,a,train", "x/001.jpg,b, train", "x/002.png,a,Val", "x/003.jpg,b,Test Set"]
    table.write_text("\n".join(["path,label,split", *rows]))
    counts = {split: examples.examples for split, examples in open_table(table).splits.items()}
    assert counts == {"train": 2, "validation": 1, "test": 1}


def test_prepared_with_a_per_class_limit(folder, store):
    table = folder / "table.csv"
    rows = [f"{path},{'ab'[index % 2]}" for index, path in enumerate(sorted((folder / "x").iterdir()))]
    table.write_text("\n".join(["path,label", *rows]))
    dataset = store(source=f"csv:{table}", limit=1)
    assert dataset.splits == {"train": 2, "validation": 2}
    assert sorted(dataset.labels("train")) == [0, 1]
    assert dataset.directory.name.startswith("table-")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"csv /.*table.csv cannot be read: No such file or directory"),
        ("", r"csv /.* cannot be read: No columns to parse"),
        ("path,label\nx/000.png,caf\u00e9\n", r"csv /.* cannot be read: save it as UTF-8"),
        ("file,label\nx,y\n", r"has no column 'path' \(it has file, label\): the columns must be path,label\[,split\]"),
        ("path,label\nx/000.png,a\nx/001.jpg,a\n", r"csv /.* has only the class 'a'"),
        ("path,label\n", r"csv /.* has no training image"),
        ("path,label\nx/000.png,a\nnull\0byte.png,b\n", r"1 of 2 files do not exist, the first is /.*null.byte.png"),
        ("path,label\nx/000.png,a\nno.png,b\nnot.png,b\n", r"2 of 3 files do not exist, the first is /.*no.png"),
        ("path,label\nx/000.png,a\nx/001.jpg,\n", r"line 3: label='' is not allowed: it must be a non-empty text"),
        ("path,label,split\nx/000.png,a,dev\n", r"line 2: split='dev' is not allowed: it must be one of train, val"),
        ('path,label\n\n \nx/000.png,"a\n"\n\n"x/\n001.jpg",\n', r"line 7: label='' is not allowed"),
        ("path,label\nx/000.png,a,1\nx/001.jpg,b,2\n", r"has 3 values in a row, but 2 columns: path, label"),
        ("path,label,label\nx/000.png,a,b\n", r"csv /.*table.csv has two columns 'label': rename one of them"),
        ("path,label, label\nx/000.png,a,b\n", r"csv /.*table.csv has two columns 'label': rename one of them"),
        ("path,label\nx/000.png,,\n", r"has 3 values in a row, but 2 columns: path, label"),
    ],
)
def test_wrong_tables(folder, text, message):
    table = folder / "table.csv"
    if text is not None:
        table.write_text(text, encoding="cp1252")
    with pytest.raises(DatasetError, match=message) as caught:
        open_table(table)
    assert "\n" not in str(caught.value)


def test_a_wrong_cell_of_a_compressed_table(folder):
    table = folder / "table.csv.gz"
    table.write_bytes(gzip.compress(b"path,label\nx/000.png,a\nx/001.jpg,\n"))
    with pytest.raises(DatasetError) as caught:
        open_table(table)
    assert str(caught.value) == f"csv {table}: label='' is not allowed: it must be a non-empty text"


def test_a_file_that_cannot_be_read_is_not_said_to_be_missing(folder):
    (folder / "x/round.png").symlink_to("round.png")
    table = folder / "table.csv"
    table.write_text("path,label\nx/000.png,a\nx/round.png,b\n")
    with pytest.raises(DatasetError) as caught:
        open_table(table)
    assert str(caught.value) == f"csv {table}: cannot read {folder}/x/round.png: Too many levels of symbolic links"
