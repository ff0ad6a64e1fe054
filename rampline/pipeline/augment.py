"""What is done to training images, drawn per position of the global batch: the same whatever the number of replicas."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from rampline.config.choices import AUGMENTATIONS
from rampline.config.keras_names import IMAGE_LAYERS, keras_names
from rampline.config.setting import Options
from rampline.errors import ConfigError
from rampline.pipeline.examples import Examples
from rampline.pipeline.order import EpochOrder, shuffle

# Keras' layers that put two examples together, and change labels with images.
MIXING = (keras.layers.MixUp, keras.layers.CutMix)
# Below it Keras' random functions take a seed as it is.
_LARGEST_SEED = 2**31 - 2

Pair = tuple[tf.Tensor, tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class Augmented:
    """The examples of one global batch, augmented.

    What is drawn for an example depends on the seed of the run, the step, its row in the global batch, and the place of
    what is done to it in the list.

    Attributes:
        examples: of the split.
        order: of the training.
        step: scalar int64.
        kinds: what is done, in this order: functions of `AUGMENTATIONS` and layers, see `load_augmentations`.
    """

    examples: Examples
    order: EpochOrder
    step: tf.Tensor
    kinds: tuple[Any, ...]

    def take(self, rows: tf.Tensor) -> Pair:
        """Images (n, height, width, channels) uint8 and labels of the (n,) int64 `rows` of the global batch.

        The labels are (n,) int32, or (n, classes) float32 where examples are mixed.
        """
        images, labels = self._after(len(self.kinds), rows)
        if images.dtype != tf.uint8:
            images = tf.cast(tf.clip_by_value(tf.round(images), 0, 255), tf.uint8)
        return images, labels

    def _after(self, place: int, rows: tf.Tensor) -> Pair:
        """Images and labels after the first `place` of the kinds; the places count from 1."""
        if not place:
            return self.examples.take(self.order.examples_at(self.step, rows))
        kind = self.kinds[place - 1]
        if isinstance(kind, MIXING):
            return self._mixed(kind, place, rows)
        images, labels = self._after(place - 1, rows)
        if isinstance(kind, keras.layers.Layer):
            return _transform(kind, images, self._seeds(place, rows)), labels
        seed = self._seed if place == 1 else self._seed_of(place)
        draws = tf.random.stateless_uniform((self.order.global_batch_size, 3), seed)
        return kind(images, tf.gather(draws, rows)), labels

    def _mixed(self, layer: keras.layers.Layer, place: int, rows: tf.Tensor) -> Pair:
        """Each example mixed with another of the global batch, which may be in the share of another replica."""
        seed = tf.random.fold_in(self._seed_of(place), 0)
        partners = shuffle(rows, seed, self.order.examples_in_batch(self.step))
        needed, places = tf.unique(tf.concat([rows, partners], axis=0), out_idx=tf.int64)
        images, labels = self._after(place - 1, needed)
        if labels.shape.rank == 1:
            labels = tf.one_hot(labels, self.examples.classes)
        own, other = tf.split(places, 2)
        images, labels = (tf.stack([tf.gather(x, own), tf.gather(x, other)], axis=1) for x in (images, labels))
        return _mix(layer, images, labels, self._seeds(place, rows))

    @property
    def _seed(self) -> tf.Tensor:
        return tf.stack([tf.constant(self.order.seed, tf.int64), tf.cast(self.step, tf.int64)])

    def _seed_of(self, place: int) -> tf.Tensor:
        return tf.random.fold_in(self._seed, place)

    def _seeds(self, place: int, rows: tf.Tensor) -> tf.Tensor:
        """(n, 2) int64, where the generators of a layer begin for each of the rows."""
        shape, seed = (self.order.global_batch_size, 2), self._seed_of(place)
        drawn = tf.random.stateless_uniform(shape, seed, 0, _LARGEST_SEED, tf.int64)
        return tf.gather(drawn, rows)


@functools.cache
def load_augmentations(augmentations: tuple[tuple[str, Options], ...]) -> tuple[Any, ...]:
    """The functions and layers that `DataConfig.augmentations` names, made once.

    A layer makes variables for its seeds, which are not used: the first call must be outside a `tf.function`.

    Raises:
        ConfigError: on a layer that Keras does not have, or does not make with these options.
    """
    return tuple(
        AUGMENTATIONS[name].load() if name in AUGMENTATIONS else make_layer(name, options)
        for name, options in augmentations
    )


def make_layer(name: str, options: Mapping[str, Any]) -> keras.layers.Layer:
    """A layer for images from 0 to 255.

    Raises:
        ConfigError: see `load_augmentations`.
    """
    with _float32(), tf.init_scope():
        try:
            layer = getattr(keras.layers, name if name in keras_names("layers", IMAGE_LAYERS) else "")
            if "value_range" in inspect.signature(layer).parameters:
                options = {**options, "value_range": (0, 255)}
            return layer(**options, dtype="float32")
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ConfigError(f"data.augment: {name} cannot be made with {options}: {reason}") from error


def check_layer(name: str, options: Mapping[str, Any], image_shape: Sequence[int]) -> None:
    """Make a layer, and give it an image.

    Raises:
        ConfigError: when it cannot be made, or changes the size of images of this shape, or does not take them.
    """
    layer, image = make_layer(name, options), tf.zeros(image_shape, tf.uint8)
    try:
        if isinstance(layer, MIXING):
            _mix(layer, tf.stack([image, image])[None], tf.eye(2)[None], tf.zeros((1, 2), tf.int64))
        else:
            _transform(layer, image[None], tf.zeros((1, 2), tf.int64))
    except ConfigError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"data.augment: {name} does not take images of {tuple(image_shape)}: {reason}") from error


def _transform(layer: keras.layers.Layer, images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """float32 images after a layer, each by draws of its own."""
    shape = tuple(images.shape[1:])
    made = tuple(layer.compute_output_shape((1, *shape))[1:])
    if made != shape:
        name = type(layer).__name__
        raise ConfigError(f"data.augment: {name} makes images of {made} of {shape}: the size must stay")

    def transform(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
        _draw_from(layer, seed)
        with _float32():
            return tf.ensure_shape(_call(layer, tf.cast(image, tf.float32)[None])[0], shape)

    return _map(transform, (images, seeds), tf.TensorSpec(shape, tf.float32))


def _call(layer: keras.layers.Layer, images: tf.Tensor) -> tf.Tensor:
    """One float32 image, (1, …), after a layer."""
    if not isinstance(layer, keras.layers.RandAugment):
        return layer(images, training=True)
    # Keras carries out all its operations, and takes the results of those that were drawn: ten times the work.
    if not layer.built:
        layer.build(images.shape)
    drawn, shape = layer.get_random_transformation(images), images.shape
    for number in tf.unstack(drawn["layer_idxes"]):
        changes = drawn["transforms"].items()
        branches = [functools.partial(getattr(layer, name).transform_images, images, how) for name, how in changes]
        images = tf.ensure_shape(tf.switch_case(number, branches), shape)
    return images


def _mix(layer: keras.layers.Layer, images: tf.Tensor, labels: tf.Tensor, seeds: tf.Tensor) -> Pair:
    """The first of two examples each, (n, 2, …), mixed with the second as the layer does it in a batch."""

    def mix(images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor) -> Pair:
        _draw_from(layer, seed)
        with _float32():
            images = tf.cast(images, tf.float32)
            drawn = layer.get_random_transformation(images[:1]) | {"permutation_order": tf.constant([1, 0])}
            return layer.transform_images(images, drawn)[0], layer.transform_labels(labels, drawn)[0]

    like = (tf.TensorSpec(images.shape[2:], tf.float32), tf.TensorSpec(labels.shape[2:], tf.float32))
    return _map(mix, (images, labels, seeds), like)


def _map(function: Callable[..., Any], rows: tuple[tf.Tensor, ...], like: Any) -> Any:
    """What `function` makes of each row. Its many small operations are for a processor, also in a worker with GPUs."""
    with tf.device("CPU:0"):
        return tf.map_fn(lambda parts: function(*parts), rows, fn_output_signature=like)


@contextmanager
def _float32() -> Iterator[None]:
    """Keras' image layers compute in float32 alone; the parity check has float64 for all else."""
    floatx = keras.config.floatx()
    keras.config.set_floatx("float32")
    try:
        yield
    finally:
        keras.config.set_floatx(floatx)


def _draw_from(layer: keras.layers.Layer, seed: tf.Tensor) -> None:
    """Let a layer draw as Keras' generator does whose state is the (2,) int64 `seed`."""
    draws = itertools.count()

    def next_seed(ordered: bool = True) -> tf.Tensor:
        return seed + tf.constant([0, next(draws)], tf.int64)

    for generator in seed_generators(layer):
        generator.next = next_seed


def seed_generators(layer: keras.layers.Layer) -> list[keras.random.SeedGenerator]:
    """Those of a layer or a model, and of all layers in it."""
    found = [g for inner in layer._flatten_layers() for g in getattr(inner, "_seed_generators", ())]
    return list({id(generator): generator for generator in found}.values())


def flip(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """Left-right with probability 1/2, by the first of an image's three numbers in [0, 1)."""
    return tf.where(draws[:, 0, None, None, None] < 0.5, images, images[:, :, ::-1])


def crop(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    """1/8 reflected padding on each side, then a random window of the old size (He et al. 2016 pad 4 of 32 pixels).

    The window lies where the other two numbers say.
    """
    height, width = images.shape[1], images.shape[2]
    pad_rows, pad_columns = height // 8, width // 8
    padded = tf.pad(images, [[0, 0], [pad_rows, pad_rows], [pad_columns, pad_columns], [0, 0]], mode="REFLECT")
    top = tf.cast(draws[:, 1] * (2 * pad_rows + 1), tf.int32)
    left = tf.cast(draws[:, 2] * (2 * pad_columns + 1), tf.int32)
    rows = tf.gather(padded, top[:, None] + tf.range(height), axis=1, batch_dims=1)
    return tf.gather(rows, left[:, None] + tf.range(width), axis=2, batch_dims=1)


def flip_and_crop(images: tf.Tensor, draws: tf.Tensor) -> tf.Tensor:
    return crop(flip(images, draws), draws)
