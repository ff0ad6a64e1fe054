"""The networks: uint8 images in, logits of `keras.config.floatx()` out; scaling is part of the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import keras

from rampline.config import ModelConfig
from rampline.errors import ConfigError
from rampline.imports import import_own
from rampline.model_check import check_name, check_weights

ImageShape = tuple[int, int, int]


def make_model(config: ModelConfig, *, image_shape: ImageShape, classes: int) -> keras.Model:
    """Build a classifier from (batch, height, width, channels) uint8 to (batch, classes) logits.

    The logits are float32, or what `keras.config.floatx()` says.

    Weights of `keras.applications` backbones are loaded here (`imagenet` or a weight file); a checkpoint of ours is
    loaded
    by the caller, over the whole model.

    Raises:
        ConfigError: on an unknown name, or weights that do not fit.
    """
    check_weights(config.weights)
    if ":" in config.name:
        return _import_factory(config.name)(input_shape=image_shape, classes=classes)
    if config.name in BUILT_IN:
        return _make_built_in(config.name, image_shape, classes)
    return _make_application(config, image_shape, classes)


def convnet(image_shape: ImageShape, classes: int) -> keras.Model:
    """Two 3x3 convolutions (32, 64) with max-pooling, a dense layer of 64: seed D's network."""
    inputs = keras.Input(image_shape, dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for filters in (32, 64):
        x = keras.layers.Conv2D(filters, 3, activation="relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(inputs, _logits(x, classes), name="convnet")


def convnet7(image_shape: ImageShape, classes: int) -> keras.Model:
    """Seven weight layers, five convolutions (32 … 256) and two dense: the network of seed E's sweep."""
    inputs = keras.Input(image_shape, dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for filters in (32, 64, 128, 128):
        x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D(padding="same")(x)
    x = keras.layers.Conv2D(256, 3, padding="same", activation="relu")(x)
    x = keras.layers.Dense(256, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(inputs, _logits(x, classes), name="convnet7")


BUILT_IN: dict[str, Callable[[ImageShape, int], keras.Model]] = {"convnet": convnet, "convnet7": convnet7}


def _make_built_in(name: str, image_shape: ImageShape, classes: int) -> keras.Model:
    try:
        return BUILT_IN[name](image_shape, classes)
    except ValueError as error:
        raise ConfigError(f"data.image_size={image_shape[0]} is too small for {name}") from error


def _make_application(config: ModelConfig, image_shape: ImageShape, classes: int) -> keras.Model:
    """Backbone → global average pooling → dense relu → dropout → logits: seed A's head."""
    check_name(config.name)
    make_backbone = getattr(keras.applications, config.name)
    inputs = keras.Input(image_shape, dtype="uint8", name="images")
    x = keras.layers.Rescaling(1.0)(inputs)
    if image_shape[-1] == 1:
        x = keras.layers.Concatenate()([x, x, x])
    x = _preprocess(make_backbone)(x)
    backbone = _load_backbone(make_backbone, config, (*image_shape[:2], 3))
    backbone.trainable = config.trainable == "all"
    x = keras.layers.GlobalAveragePooling2D()(backbone(x))
    if config.head_units:
        x = keras.layers.Dense(config.head_units, activation="relu")(x)
    if config.dropout:
        x = keras.layers.Dropout(config.dropout)(x)
    return keras.Model(inputs, _logits(x, classes), name=config.name.lower())


def _load_backbone(make_backbone: Callable[..., keras.Model], config: ModelConfig, shape: ImageShape) -> keras.Model:
    is_backbone_file = config.weights.endswith(".h5")
    weights = config.weights if is_backbone_file or config.weights == "imagenet" else None
    try:
        return make_backbone(include_top=False, weights=weights, input_shape=shape)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"model.weights={config.weights} cannot be loaded into {config.name}: {reason}") from error


def _preprocess(make_backbone: Callable[..., keras.Model]) -> Callable:
    """The scaling that belongs to a backbone, from the `keras.applications` module that defines it."""
    module = inspect.getmodule(make_backbone)
    if module is None:
        raise ConfigError(f"{make_backbone.__name__} has no module with its preprocess_input")
    return module.preprocess_input


def _logits(features: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    # Mixed precision lowers the policy of the layers and leaves floatx at float32.
    return keras.layers.Dense(classes, dtype=keras.config.floatx(), name="logits")(features)


def _import_factory(name: str) -> Callable[..., keras.Model]:
    module_name, _, function_name = name.partition(":")
    try:
        return getattr(import_own(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"model.name={name!r} cannot be imported: {error}") from error
