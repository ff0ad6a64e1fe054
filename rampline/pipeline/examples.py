"""Images and labels of one split by index, from any of the three storages of a prepared dataset."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from rampline.data.dataset import PreparedDataset
from rampline.data.decoder import decode_and_resize


@dataclass(frozen=True, kw_only=True)
class Examples:
    """One split, addressed by index inside a TensorFlow graph.

    Attributes:
        storage: `tensor`, `raw_files` or `encoded_files`, see `PreparedDataset`.
        image_shape: (height, width, channels).
        classes: of the whole dataset.
        labels: (examples,) int32.
        images: (examples, height, width, channels) uint8 for `tensor`, else the scalar path prefix of the files.
        orientations: (examples,) int32, of `encoded_files` that are not all upright.
    """

    storage: str
    image_shape: tuple[int, int, int]
    classes: int
    labels: tf.Tensor
    images: tf.Tensor
    orientations: tf.Tensor | None = None

    def take(self, indices: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Images (n, height, width, channels) uint8 and labels (n,) int32 of `indices` (n,) int64."""
        labels = tf.gather(self.labels, indices)
        if self.storage == "tensor":
            return tf.gather(self.images, indices), labels
        read = self._read_raw if self.storage == "raw_files" else self._read_encoded
        images = tf.map_fn(read, indices, fn_output_signature=tf.TensorSpec(self.image_shape, tf.uint8))
        return tf.ensure_shape(images, (None, *self.image_shape)), labels

    def _read_raw(self, index: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tf.io.decode_raw(tf.io.read_file(self._path(index)), tf.uint8), self.image_shape)

    def _read_encoded(self, index: tf.Tensor) -> tf.Tensor:
        orientation = None if self.orientations is None else self.orientations[index]
        return decode_and_resize(tf.io.read_file(self._path(index)), self.image_shape, orientation)

    def _path(self, index: tf.Tensor) -> tf.Tensor:
        folder = tf.strings.as_string(index // 1000, width=5, fill="0")
        return tf.strings.join([self.images, folder, "/", tf.strings.as_string(index, width=8, fill="0")])


def open_examples(dataset: PreparedDataset, split: str, images: tf.Tensor | None = None) -> Examples:
    """Open a split; with storage `tensor` its images are read into memory, once per process, unless they are given.

    Runs eagerly, or inside a dataset that a parameter-server worker executes.
    """
    orientations = dataset.orientations(split)
    return Examples(
        storage=dataset.storage,
        image_shape=dataset.image_shape,
        classes=len(dataset.class_names),
        labels=tf.constant(dataset.labels(split), tf.int32),
        images=_open_images(dataset, split) if images is None else images,
        orientations=None if orientations is None else tf.constant(orientations, tf.int32),
    )


def _open_images(dataset: PreparedDataset, split: str) -> tf.Tensor:
    """In the host's memory: a GPU, which can reshape too, would keep a copy of the whole split."""
    with tf.device("CPU:0"):
        if dataset.storage != "tensor":
            return tf.constant(dataset.example_prefix(split))
        raw = tf.io.decode_raw(tf.io.read_file(str(dataset.images_file(split))), tf.uint8)
        return tf.reshape(raw, (-1, *dataset.image_shape))
