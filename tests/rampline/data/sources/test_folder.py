import errno
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from rampline.config import DataConfig
from rampline.data.sources import folder
from rampline.errors import DatasetError


def open_folder(root, **settings):
    return folder.open_source(DataConfig(source=f"folder:{root}", **settings), Path())


def test_classes_directly_below(make_folder):
    source = open_folder(make_folder({"dogs": 2, "cats": 3, "birds/small": 1}))
    assert source.class_names == ("birds", "cats", "dogs")
    examples = list(source.splits["train"].iterate())
    assert [example.label for example in examples] == [0, 1, 1, 1, 2, 2]
    assert examples[0].name == "birds/small/000.png"
    assert source.channels == 3


@pytest.mark.parametrize(
    "names",
    [
        ("training", "valid", "testing"),
        ("training_set", "validation_set", "test_set"),
        ("train-images", "val", "Test Data"),
    ],
)
def test_splits_by_their_usual_names(make_folder, names):
    root = make_folder({f"{name}/{label}": number + 1 for number, name in enumerate(names) for label in "ab"})
    splits = {split: examples.examples for split, examples in open_folder(root).splits.items()}
    assert splits == {"train": 2, "validation": 4, "test": 6}


@pytest.mark.parametrize(
    "names",
    [
        ("train", "test"),
        ("a", "val", "Test"),
        ("train2017", "val2017"),
        ("images-eval", "images-train"),
    ],
)
def test_splits_are_no_classes(make_folder, names):
    """Images lie directly in the splits, as in many downloads: a network would learn to tell the splits apart."""
    root = make_folder(dict.fromkeys(names, 2))
    first, second = sorted(names)[-2:] if "a" not in names else ("Test", "val")
    assert refusal(root) == (
        f"folder {root} has the classes {first!r} and {second!r}, which are names of splits: write "
        "train/CLASS/1.jpg and test/CLASS/1.jpg, or in a table the split into the column 'split'"
    )


def test_an_archive_is_entered_though_it_is_called_as_a_split(make_folder, tmp_path):
    root = make_folder({"test_data/train/a": 2, "test_data/train/b": 2, "test_data/test/a": 1})
    shutil.make_archive(str(tmp_path / "images"), "tar", root)
    config = DataConfig(source=f"folder:{tmp_path}/images.tar")
    source = folder.open_source(config, tmp_path / "home/tfds")
    assert {split: examples.examples for split, examples in source.splits.items()} == {"train": 4, "test": 1}


def test_what_is_no_image_in_an_archive_is_no_second_folder(make_folder, tmp_path):
    root = make_folder({"photos/animals/cat": 1, "photos/animals/dog": 1})
    for name in ("._photos", "photos/._animals", "README.md", "photos/LICENSE"):  # the first two are of macOS
        (root / name).write_bytes(b"text")
    shutil.make_archive(str(tmp_path / "photos"), "gztar", root)
    config = DataConfig(source=f"folder:{tmp_path}/photos.tar.gz")
    assert folder.open_source(config, tmp_path / "home/tfds").class_names == ("cat", "dog")


@pytest.mark.parametrize("names", [("plane", "train"), ("bullet_train", "test_tube")])
def test_a_class_may_be_called_train(make_folder, names):
    assert open_folder(make_folder(dict.fromkeys(names, 2))).class_names == tuple(sorted(names))


def test_other_and_hidden_files_are_left_alone(make_folder):
    root = make_folder({"a": 1, "b": 1, "c": 0})
    for name in ("a/notes.txt", "a/.hidden.png", "b/photo.webp", ".cache/x.png"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"x")
    source = open_folder(root)
    assert [example.name for example in source.splits["train"].iterate()] == ["a/000.png", "b/000.png", "b/photo.webp"]
    assert source.notes == (
        f"1 files below {root} are no images by their names and are left alone",
        f"1 folders of classes below {root} hold no images and are left alone",
    )


@pytest.mark.parametrize("names", [["1.png"], ["train/1.png", "test/2.JPG"]])
def test_images_beside_class_folders_are_told_of(make_folder, names):
    root = make_folder({f"{split}{label}": 1 for split in ("train/", "test/") for label in "ab"})
    for name in names:
        (root / name).touch()
    source = open_folder(root)
    assert source.examples == 4
    assert source.notes == (f"{len(names)} images below {root} lie in no folder of a class and are left alone",)


def test_a_split_without_class_folders_is_not_left_out(make_folder):
    """As in many downloads of competitions, whose test images have no labels."""
    root = make_folder({"train/a": 2, "train/b": 2, "test": 3})
    assert refusal(root) == (
        f"{root}/test holds images, but no folder per class: sort them into test/CLASS/1.jpg, or move the folder "
        "elsewhere"
    )


def test_a_split_without_class_folders_is_left_out_of_an_archive(make_folder, tmp_path):
    """Nobody can sort the images of an archive, or move them elsewhere."""
    root = make_folder({"train/a": 2, "train/b": 2, "test": 3})
    shutil.make_archive(str(tmp_path / "images"), "zip", root)
    source = folder.open_source(DataConfig(source=f"folder:{tmp_path}/images.zip"), tmp_path / "home/tfds")
    assert {split: examples.examples for split, examples in source.splits.items()} == {"train": 4}
    (note,) = source.notes
    assert note.startswith(f"3 images below {tmp_path}/home/unpacked/")
    assert note.endswith(" lie in no folder of a class and are left alone")


def test_classes_that_differ_in_case_or_in_how_an_accent_is_stored_are_told_of(make_folder):
    source = open_folder(make_folder(dict.fromkeys(("Cat", "cat", "dog", "caf\u00e9", "cafe\u0301"), 1)))
    assert len(source.class_names) == 5
    assert source.notes == ("classes that read alike are told apart: 'Cat', 'cafe\u0301', 'caf\u00e9', 'cat'",)


def test_names_that_are_no_text(make_folder):
    root = make_folder({"a": 1, "b": 1})
    for name in (b"caf\xe9.png", b"clear\x1b[2J.png"):
        (root / "a" / os.fsdecode(name)).touch()
    names = [example.name for example in open_folder(root).splits["train"].iterate()]
    assert names[1:3] == ["a/caf\ufffd.png", r"a/clear\x1b[2J.png"]


@pytest.mark.parametrize("splits", [("", ""), ("train/", "train/"), ("train/", "test/")])
def test_classes_that_read_alike_are_not_one(make_folder, splits):
    root = make_folder({"train/x": 1, "train/y": 1, "test/x": 1} if splits[0] else {"x": 1, "y": 1})
    for split, name in zip(splits, (b"caf\xe8", b"caf\xe9"), strict=True):
        path = root / split / os.fsdecode(name)
        path.mkdir()
        (path / "1.png").touch()
    said = refusal(root)
    assert said.startswith(f"folder {root} has classes that read alike, b'caf")
    assert said.endswith("': their names must be UTF-8")


def test_the_quick_fingerprint_follows_sizes_times_and_names(make_folder):
    root = make_folder({"a": 2, "b": 2})
    config = DataConfig(source=f"folder:{root}")
    before = folder.stat_fingerprint(config, Path())
    assert folder.stat_fingerprint(config, Path()) == before == open_folder(root).stat_fingerprint
    (root / "a/000.png").rename(root / "a/009.png")
    assert folder.stat_fingerprint(config, Path()) != before


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({}, r"folder /.* does not exist: data.source=folder:PATH needs a folder with a sub-folder per class"),
        ({"a": 0, "b": 0}, r"folder /.* holds no images: they are looked for in a sub-folder per class"),
        ({"a": 3}, r"folder /.* has only the class 'a': at least two classes"),
        ({"train/a": 1, "train/b": 1, "val/c": 1}, r"has the class 'c' in validation but not in train"),
        (
            {"train/a": 1, "train/b": 1, "holdout/a": 1},
            r"has 'holdout' beside 'train': beside a split only train, .*test are",
        ),
        ({"train/a": 1, "train/b": 1, "val/a": 1, "valid/a": 1}, r"has 'val' and 'valid': only one of them is allowed"),
    ],
)
def test_wrong_folders(make_folder, counts, message):
    with pytest.raises(DatasetError, match=message) as caught:
        open_folder(make_folder(counts))
    assert "\n" not in str(caught.value)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(DatasetError, match="is a file"):
        open_folder(tmp_path / "x")


@pytest.mark.parametrize(
    "path, found", [("~nobody-of-that-name", "does not exist"), ("x" * 300, "cannot be read: File name too long")]
)
def test_a_path_that_cannot_be_looked_at(path, found):
    assert f"{path} {found}: data.source=folder:PATH needs a folder" in refusal(path)


def refusal(root):
    with pytest.raises(DatasetError) as caught:
        open_folder(root)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_link_to_nowhere(make_folder):
    root = make_folder({"a": 1, "b": 1})
    (root / "a/lost.png").symlink_to("nowhere.png")
    assert refusal(root) == f"cannot read {root}/a/lost.png: No such file or directory"


def test_a_link_to_an_image_inside(make_folder):
    root = make_folder({"a": 1, "b": 1})
    (root / "a/same.png").symlink_to("../b/000.png")
    _, second, third = open_folder(root).splits["train"].iterate()
    assert (second.name, second.label, second.read()) == ("a/same.png", 0, third.read())


@pytest.mark.parametrize("target", ["secret.png", "chain"])
def test_a_link_that_leads_outside(make_folder, make_image, target):
    root = make_folder({"a": 1, "b": 1})
    secret = root.parent / "secret.png"
    secret.write_bytes(make_image(1))
    (root / "chain").symlink_to(secret)
    link = root / "a/x.png"
    link.symlink_to({"secret.png": secret, "chain": "../chain"}[target])
    assert refusal(root) == f"{link} leads to {secret}, outside {root}: images must lie inside"


@pytest.mark.parametrize("link", ["c", "a/more", "b/round"])
def test_a_link_to_a_folder(make_folder, link):
    root = make_folder({"a": 1, "b": 1})
    target = make_folder({"x/y": 1}, name="elsewhere") if link != "b/round" else root
    (root / link).symlink_to(target)
    assert refusal(root) == f"{root}/{link} is a link: links to folders are not followed, put the folder itself there"


@pytest.mark.parametrize("link", ["c", "loose.png", "train/loose.png"])
def test_a_link_into_a_folder_that_may_not_be_looked_into(make_folder, monkeypatch, link):
    root = make_folder({"train/a": 1, "train/b": 1} if "/" in link else {"a": 1, "b": 1})
    (root / link).symlink_to("nowhere")
    look = os.stat

    def refuse(path, **options):
        if path == root / link:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return look(path, **options)

    monkeypatch.setattr(os, "stat", refuse)  # root, which may run the tests, may look into every folder
    assert refusal(root) == f"cannot read {root}/{link}: Permission denied"


def test_a_link_that_leads_to_itself(make_folder):
    root = make_folder({"a": 1, "b": 1})
    (root / "a/x.png").symlink_to("x.png")
    assert refusal(root) == f"cannot read {root}/a/x.png: Too many levels of symbolic links"


def test_what_would_be_read_for_ever(make_folder):
    root = make_folder({"a": 1, "b": 1})
    os.mkfifo(root / "a/pipe.png")
    assert refusal(root) == f"{root}/a/pipe.png is no regular file: images must be files"


def test_the_folder_itself_may_be_a_link(make_folder, tmp_path):
    (tmp_path / "link").symlink_to(make_folder({"a": 2, "b": 2}))
    assert open_folder(tmp_path / "link").examples == 4


@pytest.mark.parametrize("unlisted", ["", "b", "b/x"])
def test_a_folder_that_cannot_be_listed_is_not_left_out(make_folder, monkeypatch, unlisted):
    root = make_folder({"a": 1, "b/x": 1, "b/y": 1})

    def refuse(list_it, folder="."):
        if Path(folder) == root / unlisted:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        return list_it(folder)

    # Root, which may run the tests, may list every folder.
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, partial(refuse, getattr(os, name)))
    assert refusal(root) == f"cannot read the folder {root / unlisted}: Permission denied"


@pytest.mark.parametrize("split", ["", "train/"])
def test_classes_a_level_too_low_are_told_of(make_folder, split):
    root = make_folder({f"{split}{fold}/{label}/more": 1 for fold in ("fold1", "fold2") for label in ("dog", "cat")})
    source = open_folder(root)
    assert source.class_names == ("fold1", "fold2")
    assert source.notes == (
        f"all classes of {root} have sub-folders called 'cat', 'dog': if these are the classes, move them up, or write "
        "a csv: table",
    )


@pytest.mark.parametrize(
    "counts",
    [
        {"a/images": 1, "b/images": 1},
        {"a/x": 1, "a/y": 1, "b/z": 1, "b/y": 1},
        {"a/x": 1, "a/y": 1, "b": 1, "b/x": 1, "b/y": 1},
    ],
)
def test_sub_folders_that_are_no_classes_are_not_told_of(make_folder, counts):
    assert open_folder(make_folder(counts)).notes == ()


def test_sub_folders_that_are_groups_are_not_told_of(make_folder):
    root = make_folder({f"{label}/{patient}": 1 for label in ("dog", "cat") for patient in ("p1", "p2")})
    assert open_folder(root, group=r"/(p\d)/").notes == ()
