import contextlib
import io
import re
import tarfile
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from file_server import serve

from rampline.data.quality import read_report
from rampline.data.sources import tfds_set
from rampline.errors import DatasetError, DownloadFailed


class TinyShapes(tfds.core.GeneratorBasedBuilder):
    """Grey images of one brightness per class; an extra split, and a test split that may have no labels."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="labelled"), tfds.core.BuilderConfig(name="unlabelled")]
    LABELS = ("zebra", "ape", "cow")

    def _info(self):
        image, label = tfds.features.Image(shape=(6, 5, 1)), tfds.features.ClassLabel(names=self.LABELS)
        features = {"image": image, "label": label, "weight": np.float32}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {
            "train": self._generate_examples(30),
            "test": self._generate_examples(6),
            "extra": self._generate_examples(3),
        }

    def _generate_examples(self, number):
        hidden = number == 6 and str(self.info.full_name).split("/")[1] == "unlabelled"
        for i in range(number):
            image = np.full((6, 5, 1), 80 * (i % 3) + i // 3, np.uint8)
            yield i, {"image": image, "label": -1 if hidden else i % 3, "weight": 1.0}


class TinyArchive(tfds.core.GeneratorBasedBuilder):
    """Images from an archive of the user's, unpacked by TFDS itself: no checksum is known of it."""

    VERSION = tfds.core.Version("1.0.0")
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Put images.* there."

    def _info(self):
        features = {"image": tfds.features.Image(shape=(6, 5, 1)), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        (archive,) = dl_manager.manual_dir.glob("images.*")
        return {"train": self._generate_examples(dl_manager.extract(archive))}

    def _generate_examples(self, folder):
        for i, path in enumerate(sorted(folder.glob("*/*.png"))):
            yield i, {"image": path, "label": i % 2}


class OtherArchive(TinyArchive):
    """Another set, whose archive has the same name."""


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    """No images."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"text": "a", "label": 0}


def test_prepared_from_a_tfds_builder(store, home):
    dataset = store(source="tfds:tiny_shapes/labelled", image_size=8)
    assert dataset.class_names == TinyShapes.LABELS
    assert dataset.image_shape == (8, 8, 1)
    assert dataset.splits == {"train": 27, "validation": 3, "test": 6}
    assert dataset.directory.name.startswith("tfds-tiny_shapes-labelled-")
    pixels = np.fromfile(dataset.images_file("train"), np.uint8).reshape(27, -1)
    assert (pixels.max(axis=1) // 80 == dataset.labels("train")).all()
    assert (pixels.min(axis=1) == pixels.max(axis=1)).all()
    assert read_report(dataset.directory).summary["max_height"].tolist() == [6] * 9
    assert any("the split 'extra' is left out" in line for line in store.lines)
    store(source="tfds:tiny_shapes/labelled", image_size=8)
    assert store.lines[-1] == f"prepared already: {dataset.directory}"


class TinyMatrices(tfds.core.GeneratorBasedBuilder):
    """As SVHN: a file for each split, the examples in it, and the older form of splits."""

    VERSION = tfds.core.Version("1.0.0")
    ADDRESS = ""

    def _info(self):
        features = {"image": tfds.features.Image(shape=(6, 5, 1)), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _download(self, dl_manager):
        return dl_manager.download({name: f"{self.ADDRESS}/{name}.bin" for name in ("train", "test", "extra")})

    def _split_generators(self, dl_manager):
        files = self._download(dl_manager)
        return [
            tfds.core.SplitGenerator(name=split, gen_kwargs={"file": files[split]})
            for split in ("train", "test", "extra")
        ]

    def _generate_examples(self, file):
        for i, brightness in enumerate(file.read_bytes()[:12]):
            yield i, {"image": np.full((6, 5, 1), brightness, np.uint8), "label": i % 2}


class TinyTables(TinyMatrices):
    """A file beside those of the splits that is none of a split, and the newer form of splits."""

    VERSION = tfds.core.Version("1.0.0")

    def _split_generators(self, dl_manager):  # pyright: ignore[reportIncompatibleMethodOverride]
        files = self._download(dl_manager)
        assert files["extra"].read_bytes()
        return {split: self._generate_examples(file=files[split]) for split in ("train", "test")}


def test_a_split_that_is_not_used_is_not_downloaded(store, monkeypatch):
    monkeypatch.setattr(tfds_set, "TELL_SECONDS", 0.02)
    with serve(bytes(range(12)) + bytes(300_000), pause_seconds=0.1) as server:
        monkeypatch.setattr(TinyMatrices, "ADDRESS", server.url.rpartition("/")[0])
        dataset = store(source="tfds:tiny_matrices")
    assert sorted(server.paths) == ["/test.bin", "/train.bin"]
    assert dataset.splits == {"train": 10, "validation": 2, "test": 12}
    first, left_out = (line for line in store.lines if line.startswith("tfds:tiny_matrices: 2 f") or "left out" in line)
    assert first.endswith("2 files of unknown size, downloaded unless they are there; TFDS has checksums of 0 of them")
    assert "the split 'extra' is left out, neither downloaded nor prepared" in left_out
    assert any(re.search(r"matrices: downloaded \d+,\d+ bytes of unknown size", line) for line in store.lines)


def test_a_server_that_is_down_may_be_asked_again_and_one_that_refuses_need_not(store, monkeypatch):
    monkeypatch.setattr(tfds_set, "_DOWNLOAD_RETRIES", 1)
    for status, kind in ((503, DownloadFailed), (404, DatasetError)):
        with serve(b"", status=status) as server:
            monkeypatch.setattr(TinyMatrices, "ADDRESS", server.url.rpartition("/")[0])
            with pytest.raises(DatasetError, match="tfds:tiny_matrices cannot be prepared: ") as refusal:
                store(source="tfds:tiny_matrices")
        assert type(refusal.value) is kind


def test_a_file_that_is_no_split_is_downloaded_beside_them(store, monkeypatch):
    with serve(bytes(range(12))) as server:
        monkeypatch.setattr(TinyTables, "ADDRESS", server.url.rpartition("/")[0])
        dataset = store(source="tfds:tiny_tables")
    assert sorted(server.paths) == ["/extra.bin", "/test.bin", "/train.bin"]
    assert dataset.splits == {"train": 10, "validation": 2, "test": 12}


def test_a_test_split_without_labels_is_left_out(store):
    dataset = store(source="tfds:tiny_shapes/unlabelled", channels=3)
    assert dataset.splits == {"train": 27, "validation": 3}
    assert dataset.image_shape == (28, 28, 3)
    assert any("the split 'test' is left out: it has no labels" in line for line in store.lines)


def grey_image() -> bytes:
    return tf.io.encode_png(np.zeros((6, 5, 1), np.uint8)).numpy()


def write_hostile(path, entries):
    """An archive of four good images, then `entries`: name and content, or `(name, target)` for a link."""
    members = [(f"images/{i}.png", grey_image()) for i in range(4)] + entries
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members:
                archive.writestr(name, content)
        return
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                info.type, info.linkname = tarfile.SYMTYPE, content
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_tfds_writes_nothing_outside_its_folder(store, home, tmp_path, suffix):
    """TFDS leaves such entries out rather than refuse them; this holds that an update does not unpack them."""
    (tmp_path / "manual").mkdir()
    up = "../" * 12
    entries = [(f"{up}{tmp_path}/escaped.png", b"x"), (f"{tmp_path}/escaped.png", b"x"), ("images/../../up.png", b"x")]
    if suffix == ".tar":
        entries += [("images/9.png", "/etc/passwd"), ("images/out", str(tmp_path)), ("images/out/escaped.png", b"x")]
    write_hostile(tmp_path / f"manual/images{suffix}", entries)
    before = {path for path in tmp_path.rglob("*") if home.root not in path.parents}
    with contextlib.suppress(DatasetError):
        store(source="tfds:tiny_archive", manual_dir=str(tmp_path / "manual"))
    assert {path for path in tmp_path.rglob("*") if home.root not in path.parents} - {home.root} == before
    unpacked = [path for path in home.root.rglob("*.png") if path.is_file()]
    assert {path.name for path in unpacked} >= {f"{i}.png" for i in range(4)}
    assert all("extracted" in path.parts and not path.is_symlink() for path in unpacked)
    assert not list(home.root.rglob("up.png"))


def test_sets_whose_archives_have_one_name_are_not_mixed_up(store, tmp_path):
    """As the files of MNIST and Fashion-MNIST: TFDS would take those that it has unpacked already."""
    pixels = {}
    for name, brightness in (("tiny_archive", 10), ("other_archive", 200)):
        folder = tmp_path / name
        folder.mkdir()
        image = tf.io.encode_png(np.full((6, 5, 1), brightness, np.uint8)).numpy()
        with zipfile.ZipFile(folder / "images.zip", "w") as archive:
            for i in range(20):
                archive.writestr(f"images/{i}.png", image)
        dataset = store(source=f"tfds:{name}", manual_dir=str(folder), validation_fraction=0.2)
        pixels[name] = set(np.fromfile(dataset.images_file("train"), np.uint8).tolist())
    assert pixels == {"tiny_archive": {10}, "other_archive": {200}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "tfds:no_such_set"}, r"tfds:no_such_set is not known: TensorFlow Datasets 4\.\S+ has no such set"),
        ({"source": "tfds:fashionmnist"}, r" has no such set: did you mean tfds:fashion_mnist\?$"),
        (
            {"source": "tfds:tiny_texts"},
            r"is no image classification set: .*it has text \(Text\), label \(ClassLabel\)",
        ),
        ({"source": "tfds:tiny_shapes:9.0.0"}, r"tfds:tiny_shapes:9.0.0 cannot be opened: .*9.0.0"),
        ({"source": "tfds:not a name"}, r"tfds:not a name cannot be opened"),
        ({"source": "tfds:mnist", "manual_dir": "/nowhere"}, r"data.manual_dir='/nowhere' does not exist"),
        ({"source": "tfds:mnist", "manual_dir": "~nobody-of-that-name"}, r"data.manual_dir='/.*' does not exist"),
    ],
)
def test_wrong_sets(store, values, message):
    with pytest.raises(DatasetError, match=message) as caught:
        store(**values)
    assert "\n" not in str(caught.value)


def test_a_file_in_manual_dir_with_the_wrong_content(store, tmp_path):
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (tmp_path / f"{name}-ubyte.gz").write_bytes(b"tampered")
    with pytest.raises(DatasetError, match=r"tfds:fashion_mnist: Artifact .* has wrong checksum"):
        store(source="tfds:fashion_mnist", manual_dir=str(tmp_path))
