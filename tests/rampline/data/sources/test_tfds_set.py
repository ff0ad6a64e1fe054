import numpy as np
import pytest
import tensorflow_datasets as tfds

from rampline.data.report import read_report
from rampline.errors import DatasetError


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
        return {"train": self._examples(30), "test": self._examples(6), "extra": self._examples(3)}

    def _generate_examples(self):
        raise NotImplementedError

    def _examples(self, number):
        hidden = number == 6 and str(self.info.full_name).split("/")[1] == "unlabelled"
        for i in range(number):
            image = np.full((6, 5, 1), 80 * (i % 3) + i // 3, np.uint8)
            yield i, {"image": image, "label": -1 if hidden else i % 3, "weight": 1.0}


class TinyTexts(tfds.core.GeneratorBasedBuilder):
    """No images."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(num_classes=2)}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {}

    def _generate_examples(self):
        raise NotImplementedError


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


def test_a_test_split_without_labels_is_left_out(store):
    dataset = store(source="tfds:tiny_shapes/unlabelled", channels=3)
    assert dataset.splits == {"train": 27, "validation": 3}
    assert dataset.image_shape == (28, 28, 3)
    assert any("the split 'test' is left out: it has no labels" in line for line in store.lines)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"source": "tfds:no_such_set"}, r"tfds:no_such_set is not known: TensorFlow Datasets 4\.\S+ has no such set"),
        (
            {"source": "tfds:tiny_texts"},
            r"is no image classification set: .*it has text \(Text\), label \(ClassLabel\)",
        ),
        ({"source": "tfds:tiny_shapes:9.0.0"}, r"tfds:tiny_shapes:9.0.0 cannot be opened: .*9.0.0"),
        ({"source": "tfds:not a name"}, r"tfds:not a name cannot be opened"),
        ({"source": "tfds:mnist", "manual_dir": "/nowhere"}, r"data.manual_dir='/nowhere' does not exist"),
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
