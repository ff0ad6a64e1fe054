import hashlib
import json
import os

import numpy as np
import pytest
import tensorflow as tf

from rampline.data.decoder import decode_and_resize, resize
from rampline.data.integrity import check_intact
from rampline.data.quality import read_report
from rampline.errors import DatasetError
from rampline.files import read_json
from rampline.pipeline.examples import open_examples


def prepared_directories(home):
    return sorted(path.name for path in home.data.glob("images-*"))


def read_images(dataset, split):
    """`(examples, height, width, channels)`, from whatever storage."""
    if dataset.storage == "tensor":
        return np.fromfile(dataset.images_file(split), np.uint8).reshape(-1, *dataset.image_shape)
    prefix = dataset.example_prefix(split)
    contents = [tf.io.read_file(f"{prefix}{i // 1000:05d}/{i:08d}") for i in range(dataset.splits[split])]
    if dataset.storage == "raw_files":
        return np.stack(
            [tf.io.decode_raw(content, tf.uint8).numpy().reshape(dataset.image_shape) for content in contents]
        )
    return np.stack([decode_and_resize(content, dataset.image_shape).numpy() for content in contents])


def test_pixels_and_labels_do_not_depend_on_the_cache(store, make_folder):
    root = make_folder({"train/a": 6, "train/b": 5, "test/a": 2, "test/b": 2})
    datasets = [store(source=f"folder:{root}", image_size=8, cache=cache) for cache in ("memory", "disk", "none")]
    assert [dataset.storage for dataset in datasets] == ["tensor", "raw_files", "encoded_files"]
    assert len({dataset.directory for dataset in datasets}) == 3
    assert len({dataset.fingerprint for dataset in datasets}) == 1
    for split, examples in {"train": 9, "validation": 2, "test": 4}.items():
        pixels, *others = [read_images(dataset, split) for dataset in datasets]
        assert pixels.shape == (examples, 8, 8, 3)
        for other in others:
            np.testing.assert_array_equal(other, pixels)
        labels, *others = [dataset.labels(split) for dataset in datasets]
        assert labels.dtype == np.int32
        assert all((other == labels).all() for other in others)
    paths = sorted((root / "test").rglob("*.*"))
    expected = [decode_and_resize(tf.io.read_file(str(path)), (8, 8, 3)).numpy() for path in paths]
    np.testing.assert_array_equal(read_images(datasets[0], "test"), expected)
    assert datasets[0].labels("test").tolist() == [0, 0, 1, 1]
    assert datasets[0].paths("test") == [str(path.relative_to(root)) for path in paths]
    assert len({path for split in datasets[0].splits for path in datasets[0].paths(split)}) == 15


def test_photographs_are_stored_upright_whatever_the_cache(store, make_folder, turned, photograph):
    """One class holds the photograph as it is, the other one in the other seven orientations."""
    root = make_folder({"train/a": 3, "train/b": 3, "test/a": 1, "test/b": 1})
    before = store(source=f"folder:{root}", image_size=16)
    assert "orientation" not in read_json(before.directory / "manifest.json")["preprocessing"]
    (root / "test/a/000.png").write_bytes(turned(1, "png"))
    for orientation in range(2, 9):
        (root / f"test/b/{orientation:03d}.png").write_bytes(turned(orientation, "png"))
    (root / "test/b/000.png").unlink()
    expected = resize(tf.constant(photograph), (16, 16, 3)).numpy()
    for cache in ("memory", "disk", "none"):
        dataset = store(source=f"folder:{root}", image_size=16, cache=cache)
        images, _ = open_examples(dataset, "test").take(tf.range(8, dtype=tf.int64))
        assert images.shape == (8, 16, 16, 3)
        for image in images.numpy():
            np.testing.assert_array_equal(image, expected)
        assert dataset.orientations("train") is None
        check_intact(dataset)
    sizes = read_report(dataset.directory).summary.query("split == 'test'")
    assert sizes[["min_width", "max_width", "min_height", "max_height"]].to_numpy().tolist() == [[96, 96, 64, 64]] * 2


CLASSES = ("a", "b", "c")


@pytest.mark.parametrize(
    ("counts", "labels"),
    [
        ({"a": 3, "c": 2}, [0, 0, 0, 2, 2]),
        ({"train/a": 4, "validation/a": 1, "test/c": 3, "test/b": 1}, [1, 2, 2, 2]),
        ({"train/a": 4, "Val/c": 2}, [2, 2]),
    ],
)
def test_every_image_that_is_to_be_scored_counts_once(store, make_folder, counts, labels):
    """Labels are those of the training, whichever of its classes are there, and nothing is split off."""
    source = f"folder:{make_folder(counts)}"
    dataset = store(source=source, scored_classes=CLASSES)
    assert (dataset.splits, dataset.class_names) == ({"test": len(labels)}, CLASSES)
    assert dataset.labels("test").tolist() == labels
    assert store(source=source, scored_classes=CLASSES) == dataset
    assert store.lines[-1] == f"prepared already: {dataset.directory}"


def test_images_to_score_are_not_those_to_train_on(store, make_folder, make_image):
    root = make_folder({"a": 3, "c": 3})
    source = f"folder:{root}"
    to_train_on = store(source=source)
    assert set(to_train_on.splits) == {"train", "validation"}
    scored, otherwise = (store(source=source, scored_classes=names) for names in (CLASSES, ("c", "b", "a")))
    assert store(source=source) == to_train_on
    assert len({to_train_on.directory, scored.directory, otherwise.directory}) == 3
    assert otherwise.labels("test").tolist() == [2, 2, 2, 0, 0, 0]
    with pytest.raises(DatasetError) as caught:
        store(source=source, scored_classes=("a", "b"))
    assert str(caught.value) == f"{source} has the class 'c', which the run was not trained on: it knows a, b"


def test_a_table_of_test_images_is_scored(store, make_folder):
    root = make_folder({"x": 3})
    (root / "table.csv").write_text("path,label,split\nx/000.png,c,test\nx/001.jpg,a,test\nx/002.png,c,test\n")
    assert store(source=f"csv:{root}/table.csv", scored_classes=CLASSES).labels("test").tolist() == [2, 0, 2]


def test_a_table_without_images_is_not_scored(store, tmp_path):
    (tmp_path / "table.csv").write_text("path,label\n")
    with pytest.raises(DatasetError, match=f"csv:{tmp_path}/table.csv has no image to score"):
        store(source=f"csv:{tmp_path}/table.csv", scored_classes=CLASSES)


def test_classes_and_their_images_are_told(store, make_folder):
    root = make_folder({"train/a": 4, "train/b": 2, "val/b": 1})
    (root / "train/a/broken.jpg").write_bytes(b"no image")
    store(source=f"folder:{root}", max_undecodable_share=0.2)
    assert store.lines[-3:] == [
        "train: 6 images: a (4), b (2)",
        "validation: 1 images: b (1)",
        "1 images do not decode and are left out, see undecodable.csv",
    ]


def test_images_of_16_bits_are_told_of(store, make_folder):
    root, pixels = make_folder({"train/a": 3, "train/b": 3, "test/a": 0}), np.full((8, 8, 3), 0x12FE, np.uint16)
    for name in ("train/a/deep.png", "test/a/deep.png"):
        (root / name).write_bytes(tf.io.encode_png(pixels).numpy())
    dataset = store(source=f"folder:{root}", image_size=8)
    assert store.lines.count("2 images have 16 bits a channel: the upper 8 are used") == 1
    assert (read_images(dataset, "test") == 0x12).all()
    store(source=f"folder:{make_folder({'a': 3, 'b': 3}, name='others')}")
    assert sum("16 bits" in line for line in store.lines) == 1


def test_the_manifest_describes_every_file(store, make_folder):
    dataset = store(source=f"folder:{make_folder({'a': 4, 'b': 4})}", image_size=8)
    manifest = json.loads((dataset.directory / "manifest.json").read_text())
    content = dataset.images_file("train").read_bytes()
    assert manifest["images"]["train"] == {"examples": 6, "bytes": 6 * 8 * 8 * 3}
    assert np.load(dataset.directory / "train_digests.npy").tobytes() == hashlib.sha256(content).digest()[:16]
    for name, described in manifest["files"].items():
        assert hashlib.sha256((dataset.directory / name).read_bytes()).hexdigest() == described["sha256"]
    names = {path.name for path in dataset.directory.iterdir()}
    assert names == {*manifest["files"], "train_images.bin", "validation_images.bin", "manifest.json"}
    # As any folder of this process: a group that shares the home can read it.
    assert dataset.directory.stat().st_mode == make_folder({}).stat().st_mode


def test_the_address_follows_content_and_preprocessing(store, make_folder, make_image, home):
    root = make_folder({"train/a": 3, "train/b": 3})
    first = store(source=f"folder:{root}", image_size=8)
    for changes in ({"image_size": 9}, {"channels": 1}, {"limit": 2}, {"split_seed": 1}, {"cache": "disk"}):
        store(source=f"folder:{root}", **{"image_size": 8, **changes})
    assert len(prepared_directories(home)) == 6
    os.utime(root / "train/a/000.png")
    assert store(source=f"folder:{root}", image_size=8).directory == first.directory
    (root / "train/a/000.png").write_bytes(make_image(99))
    changed = store(source=f"folder:{root}", image_size=8)
    assert changed.fingerprint != first.fingerprint
    assert changed.directory != first.directory


def test_a_split_seed_that_decides_nothing_is_no_new_dataset(store, make_folder):
    source = f"folder:{make_folder({'train/a': 2, 'train/b': 2, 'val/a': 1, 'val/b': 1})}"
    assert store(source=source, split_seed=1).directory == store(source=source, split_seed=2).directory


def test_undecodable_files_are_left_out_and_listed(store, make_folder):
    root = make_folder({"train/a": 10, "train/b": 10, "validation/a": 2, "validation/b": 2})
    (root / "train/a/broken.jpg").write_bytes(b"no image")
    (root / "validation/b/empty.png").touch()
    dataset = store(source=f"folder:{root}", max_undecodable_share=0.1)
    assert dataset.splits == {"train": 20, "validation": 4}
    assert dataset.undecodable == 2
    report = read_report(dataset.directory)
    assert report.undecodable["name"].tolist() == ["train/a/broken.jpg", "validation/b/empty.png"]
    assert report.summary["examples"].tolist() == [10, 10, 2, 2]
    # A stricter limit later counts as well, though the dataset is there.
    with pytest.raises(DatasetError, match=r"2 of 26 images of folder:.* do not decode, more than data.max_und.*=0.01"):
        store(source=f"folder:{root}")


def test_duplicates_within_and_across_splits(store, make_folder, make_image):
    root = make_folder({"train/a": 3, "train/b": 3, "validation/a": 1, "validation/b": 1})
    for name in ("train/a/x.png", "validation/a/y.png"):
        (root / name).write_bytes(make_image(50))
    for name in ("train/a/p.png", "train/b/q.png"):
        (root / name).write_bytes(make_image(51))
    report = read_report(store(source=f"folder:{root}").directory)
    assert report.repeated("across")["name"].tolist() == ["train/a/x.png", "validation/a/y.png"]
    assert report.repeated("within")["name"].tolist() == ["train/a/p.png", "train/b/q.png"]


@pytest.mark.parametrize(
    ("share", "message"),
    [
        (0.01, r"6 of 6 images of .* do not decode.*the first is a/000.png: \S"),
        (1, "class 'a' of .* has no training image"),
    ],
)
def test_all_images_corrupt(store, make_folder, home, share, message):
    root = make_folder({"a": 3, "b": 3})
    for path in root.rglob("*.*"):
        path.write_bytes(b"corrupt " + path.name.encode())
    with pytest.raises(DatasetError, match=message):
        store(source=f"folder:{root}", max_undecodable_share=share)
    assert [path.name for path in home.data.iterdir()] == [".lock"]
