import json

import numpy as np
import pytest

from rampline.data.dataset import FORMAT_VERSION, PreparedDataset
from rampline.errors import DatasetError

MANIFEST = {
    "format_version": FORMAT_VERSION,
    "source": "digits",
    "fingerprint": "f" * 64,
    "class_names": ["a", "b"],
    "image_shape": [2, 2, 1],
    "splits": {"train": 3, "validation": 1},
    "storage": "tensor",
    "undecodable": 0,
}


def write(directory, **changes):
    for split, examples in MANIFEST["splits"].items():
        (directory / f"{split}_images.bin").write_bytes(bytes(4 * examples))
        np.save(directory / f"{split}_labels.npy", np.zeros(examples, np.int32))
    (directory / "manifest.json").write_text(json.dumps(MANIFEST | changes))


def test_open(tmp_path):
    write(tmp_path)
    dataset = PreparedDataset.open(tmp_path)
    assert (dataset.image_shape, dataset.class_names) == ((2, 2, 1), ("a", "b"))
    assert dataset.evaluation_split == "validation"
    assert dataset.labels("train").shape == (3,)
    assert dataset.example_prefix("train") == f"{tmp_path}/train/"


def test_a_test_split_is_what_is_evaluated(tmp_path):
    write(tmp_path, splits={"train": 3, "validation": 1, "test": 2}, storage="raw_files")
    assert PreparedDataset.open(tmp_path).evaluation_split == "test"


def test_nothing_there(tmp_path):
    with pytest.raises(DatasetError, match="holds no prepared dataset"):
        PreparedDataset.open(tmp_path)


def test_another_version(tmp_path):
    write(tmp_path, format_version=0)
    with pytest.raises(DatasetError, match="prepared by another version"):
        PreparedDataset.open(tmp_path)
