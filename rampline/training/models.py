"""The networks: uint8 images in, logits of `keras.config.floatx()` out, scaling inside; and how large a network is."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import h5py
import keras
import numpy as np
from keras.src.applications import efficientnet
from keras.src.backend.config import keras_home
from keras.src.utils import file_utils

from rampline.config import DataConfig, ModelConfig
from rampline.config.choices import MODELS
from rampline.config.keras_names import APPLICATIONS, check_model, check_weights, keras_names
from rampline.config.setting import check
from rampline.errors import ConfigError, DownloadFailed, says_disk_full
from rampline.files import locked, write_json
from rampline.imports import import_own
from rampline.jobs.memory import is_out_of_memory
from rampline.pipeline.augment import check_layer
from rampline.training.compiled_model import read_compiled

ImageShape = tuple[int, int, int]

# While the data is not prepared, and its classes are not counted.
GUESSED_CLASSES = 10
# Of the networks that take images of any size.
IMAGENET_SIZE = 224
# What Keras says of images.
TOO_SMALL = "Input size must be at least"
# The rounding of half precision in a sum over a thousand classes.
SOFTMAX_TOLERANCE = 1e-2


def make_model(config: ModelConfig, *, image_shape: ImageShape, classes: int) -> keras.Model:
    """Build a classifier from (batch, height, width, channels) uint8 to (batch, classes) logits.

    The logits are float32, or what `keras.config.floatx()` says.

    Weights of `keras.applications` backbones are loaded here (`imagenet` or a weight file); those of a whole model, a
    checkpoint of ours or a file of Keras', by the caller.

    Raises:
        ConfigError: on an unknown name, or weights or options that do not fit.
    """
    check_weights(config.weights)
    if ":" in config.name:
        model = _make_own(config.name, image_shape, classes)
        for output in getattr(model, "outputs", None) or ():  # of a subclass nothing is known before a call
            _check_classes(config.name, output.shape, classes)
    elif config.name in MODELS:
        model = _make_built_in(config.name, image_shape, classes)
    else:
        model = _make_application(config, image_shape, classes)
    if config.batch_norm == "frozen":
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False
    return model


def load_keras_file(path: Path, model: keras.Model) -> None:
    """Set the model's weights to those that `model.save` has written; what else the file holds is not looked at.

    Raises:
        ConfigError: when they are not those of such a model.
    """
    optimizer = getattr(model, "optimizer", None)
    try:
        # Keras takes the layers that it finds, and leaves those that a larger network has besides.
        found, wanted = _count_weights(path), len(model.weights)
        if found != wanted:
            raise ValueError(f"it has {found} weights, not {wanted}")
        # Keras would read the state of the optimizer too.
        model.optimizer = None
        model.load_weights(path)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"model.weights={path} cannot be loaded into {model.name}: {reason}") from error
    finally:
        model.optimizer = optimizer


def _count_weights(path: Path) -> int:
    """Of the model in a file of Keras', without those of its optimizer."""
    names: list[str] = []
    with zipfile.ZipFile(path) as archive, h5py.File(archive.open("model.weights.h5")) as weights:
        weights.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return sum(not name.startswith("optimizer/") for name in names)


def convnet(image_shape: ImageShape, classes: int) -> keras.Model:
    """Two 3x3 convolutions (32, 64) with max-pooling, a dense layer of 64: the network of the study `fashion_mnist`."""
    return _convolve("convnet", (32, 64), image_shape, classes)


def convnet1(image_shape: ImageShape, classes: int) -> keras.Model:
    """One 3x3 convolution (32) with max-pooling, a dense layer of 64: the network of the study `mnist`."""
    return _convolve("convnet1", (32,), image_shape, classes)


def _convolve(name: str, filters: tuple[int, ...], image_shape: ImageShape, classes: int) -> keras.Model:
    inputs = keras.Input(image_shape, dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for count in filters:
        x = keras.layers.Conv2D(count, 3, activation="relu")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Dense(64, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(inputs, _logits(x, classes), name=name)


def convnet7(image_shape: ImageShape, classes: int) -> keras.Model:
    """Seven weight layers, five convolutions (16 … 128) and two dense: the network of the study `inaturalist`.

    Convolutions and pooling are padded, which the published ones are not, so that images of any size will do.
    """
    inputs = keras.Input(image_shape, dtype="uint8", name="images")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for filters in (16, 32, 32, 64, 128):
        x = keras.layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = keras.layers.MaxPooling2D(padding="same")(x)
    x = keras.layers.Dense(128, activation="relu")(keras.layers.Flatten()(x))
    return keras.Model(inputs, _logits(keras.layers.Dropout(0.3)(x), classes), name="convnet7")


def _make_built_in(name: str, image_shape: ImageShape, classes: int) -> keras.Model:
    try:
        return MODELS[name].load()(image_shape, classes)
    except ValueError as error:
        raise _too_small(name, image_shape) from error


def _too_small(name: str, shape: ImageShape) -> ConfigError:
    return ConfigError(f"data.image_size={shape[0]} is too small for {name}")


def _make_application(config: ModelConfig, image_shape: ImageShape, classes: int) -> keras.Model:
    """Backbone → global average pooling → dense relu → dropout → logits: the head of the study `cats_vs_dogs`."""
    check_model(config.name, config.options)
    make_backbone = getattr(keras.applications, config.name)
    inputs = keras.Input(image_shape, dtype="uint8", name="images")
    x = keras.layers.Rescaling(1.0)(inputs)
    if image_shape[-1] == 1:
        x = keras.layers.Concatenate()([x, x, x])
    # The scaling belongs to the backbone: it is that of the module that defines it.
    x = sys.modules[make_backbone.__module__].preprocess_input(x)
    backbone = _load_backbone(make_backbone, config, (*image_shape[:2], 3))
    _freeze(backbone, config)
    x = keras.layers.GlobalAveragePooling2D()(backbone(x))
    if config.head_units:
        x = keras.layers.Dense(config.head_units, activation="relu")(x)
    if config.dropout:
        x = keras.layers.Dropout(config.dropout)(x)
    return keras.Model(inputs, _logits(x, classes), name=config.name.lower())


def _freeze(backbone: keras.Model, config: ModelConfig) -> None:
    if config.trainable == "head":
        backbone.trainable = False
    elif config.trainable != "all":
        layers = backbone.layers
        check(
            config.trainable <= len(layers), "model.trainable", config.trainable, f"at most {len(layers)}, its layers"
        )
        for layer in layers[: -config.trainable]:
            layer.trainable = False


def _load_backbone(make_backbone: Callable[..., keras.Model], config: ModelConfig, shape: ImageShape) -> keras.Model:
    is_backbone_file = config.weights.endswith(".h5")
    weights = config.weights if is_backbone_file or config.weights == "imagenet" else None
    make = functools.partial(make_backbone, include_top=False, input_shape=shape, **config.options)
    try:
        if make_backbone.__module__ == efficientnet.__name__:
            return _make_efficientnet(make, weights)
        return make(weights=weights)
    except DownloadFailed:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        if TOO_SMALL in str(error):
            raise _too_small(config.name, shape) from error
        reason = " ".join(str(error).split())[:200]
        made = f"{config.name} with {config.options}" if config.options else config.name
        raise ConfigError(f"model.weights={config.weights} cannot be loaded into {made}: {reason}") from error


def _make_efficientnet(make: Callable[..., keras.Model], weights: str | None) -> keras.Model:
    """A backbone with the same layers whatever its weights: a run is resumed and evaluated without those of its start.

    The published files have standard deviations where the variances belong. Keras makes up for it with one more layer,
    which only `imagenet` has (https://github.com/tensorflow/tensorflow/issues/49930); here the variances are put right.
    """
    backbone = make(weights=None if weights == "imagenet" else weights)
    if weights == "imagenet":
        backbone.set_weights(make(weights=weights).get_weights())
    (layer,) = (layer for layer in backbone.layers if isinstance(layer, keras.layers.Normalization))
    if np.allclose(layer.adapt_variance.numpy(), efficientnet.IMAGENET_STDDEV_RGB):
        layer.adapt_variance.assign(np.square(efficientnet.IMAGENET_STDDEV_RGB))
    layer.finalize_state()
    return backbone


@contextmanager
def downloads_whole(advance: Callable[[str], None]) -> Iterator[None]:
    """In the block a file that Keras downloads is whole or absent, and one process at a time downloads it.

    Keras writes to the file's own name, and has no checksum of some: another role would read a part of it, and what is
    left of a download that was killed would count as whole for ever.

    Args:
        advance: called with `download` at every block that comes, and every second while another process downloads;
            then with `load`.

    Raises:
        DownloadFailed: in the block, when the server does not answer.
    """
    get_file, urlretrieve = file_utils.get_file, file_utils.urlretrieve

    def retrieve(origin: str, target: str, report: Callable[..., None]) -> None:
        def go_on(*progress: int) -> None:
            advance("download")
            report(*progress)

        urlretrieve(origin, target, go_on)

    def fetch(name: str, origin: str, *, cache_subdir: str, **options: Any) -> str:
        folder, mark = Path(str(keras_home())).expanduser() / cache_subdir, f".rampline-{os.getuid()}"
        with suppress(OSError):  # not ours to write to: Keras takes another folder then
            folder.mkdir(parents=True, exist_ok=True)
        # Where it is there nothing is written: the folder may be somebody else's.
        while not (folder / name).exists() and os.access(folder, os.W_OK):
            advance("download")
            with locked(folder / f"{mark}.lock", seconds=1.0) as is_held:
                if not is_held or (folder / name).exists():
                    continue
                for left in folder.glob(f"{mark}-*"):  # of downloads that were killed
                    shutil.rmtree(left)
                with TemporaryDirectory(prefix=f"{mark}-", dir=folder) as aside, _told_apart(origin):
                    os.replace(get_file(name, origin, cache_subdir=aside, **options), folder / name)
        advance("load")
        return get_file(name, origin, cache_subdir=cache_subdir, **options)

    file_utils.get_file, file_utils.urlretrieve = fetch, retrieve
    try:
        yield
    finally:
        file_utils.get_file, file_utils.urlretrieve = get_file, urlretrieve


@contextmanager
def _told_apart(origin: str) -> Iterator[None]:
    """A server that does not answer now is told apart from one that refuses, and from a full disk."""
    try:
        yield
    except Exception as error:
        # Keras puts an exception of no class of its own round it.
        cause = error.__context__ or error
        if says_disk_full(cause) or getattr(cause, "code", 500) < 500:
            raise
        raise DownloadFailed(f"{origin} cannot be downloaded: {cause}") from error


def _logits(features: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    # Mixed precision lowers the policy of the layers and leaves floatx at float32.
    return keras.layers.Dense(classes, dtype=keras.config.floatx(), name="logits")(features)


def _import_factory(name: str) -> Callable[..., keras.Model]:
    module_name, _, function_name = name.partition(":")
    try:
        return getattr(import_own(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"model.name={name!r} cannot be imported: {error}") from error


def check_own_models(_folder: Path, models: list[dict[str, Any]], layers: Sequence[dict[str, Any]] = ()) -> list[str]:
    """The job that looks at models and image layers before anything is prepared: the notes on all models."""
    for layer in layers:
        check_layer(**layer)
    return [note for model in models for note in check_own_model(**model)]


def check_own_model(name: str, *, image_shape: ImageShape, classes: int | None) -> list[str]:
    """Check what a user's function returns: a model from uint8 images to one logit per class.

    Args:
        name: `package.module:function`.
        image_shape: of the data; that of a guess where `classes` is `None`.
        classes: of the data; `None` where it is not prepared. Errors that another number might cause are then left to
            the roles.

    Returns:
        what the user should know, one line each; nothing where `classes` is `None`.

    Raises:
        ConfigError: when it is no such model, in one line.
    """
    try:
        height, width, channels = image_shape  # from JSON it is a list
        model = _make_own(name, (height, width, channels), classes or GUESSED_CLASSES)
        images = np.random.default_rng(0).integers(0, 256, (4, *image_shape), dtype=np.uint8)
        outputs = model(images, training=False)
    except (ConfigError, MemoryError):
        raise
    except Exception as error:
        if classes is None and not isinstance(error, TypeError | NameError | AttributeError | ImportError):
            return []
        raise ConfigError(f"model.name={name!r} fails: {_describe_error(error)}") from error
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != 2:
        found = type(outputs).__name__ if shape is None else shape
        raise ConfigError(f"model.name={name!r} must give logits of the shape (batch, classes), not {found}")
    if classes is not None:
        _check_classes(name, shape, classes)
    _check_logits(name, model, keras.ops.convert_to_numpy(outputs).astype(np.float64))
    compiled_with = read_compiled(model, name=name, classes=classes) if classes is not None else None
    return [compiled_with.sentence(name)] if compiled_with else []


def _make_own(name: str, image_shape: ImageShape, classes: int) -> keras.Model:
    model: Any = _import_factory(name)(input_shape=image_shape, classes=classes)
    if not isinstance(model, keras.Model):
        raise ConfigError(f"model.name={name!r} must return a keras.Model, not {type(model).__name__}")
    if not model.built:
        raise ConfigError(f"model.name={name!r} returns a model without weights: call it on images once, or build it")
    return model


def _check_classes(name: str, shape: tuple[int | None, ...], classes: int) -> None:
    if len(shape) != 2 or shape[1] not in (None, classes):
        raise ConfigError(f"model.name={name!r} must give (batch, {classes}) logits, a column per class, not {shape}")


def _check_logits(name: str, model: keras.Model, outputs: np.ndarray) -> None:
    """Probabilities of random images are told from logits whatever computes them: a layer, an operation, a model.

    A sigmoid is found by its name alone: the logits of few classes may well lie between 0 and 1.
    """
    if outputs.shape[1] > 1 and outputs.min() >= 0 and np.abs(outputs.sum(axis=1) - 1).max() < SOFTMAX_TOLERANCE:
        end, loss = "softmax", "takes logits and applies one"
    elif _last_activation(model) == "sigmoid":
        end, loss = "sigmoid", "takes logits and applies a softmax"
    else:
        return
    where = _line_with(end, _import_factory(name))
    raise ConfigError(f"model.name={name!r} ends in a {end}, but its loss {loss}: leave it out ({where})")


def _last_activation(model: keras.Model) -> str:
    """What the outputs come from, in lower case; of a subclass, its own name."""
    last: Any = model
    while isinstance(last, keras.Model) and getattr(last, "outputs", None):
        last = last.outputs[0]._keras_history.operation
    activation = getattr(last, "activation", last)
    return getattr(activation, "__name__", type(activation).__name__).lower()


def _line_with(word: str, function: Callable[..., keras.Model]) -> str:
    """Where it probably is: the last line that names one in the function, else in its module."""
    for part in (function, inspect.getmodule(function)):
        try:
            lines, first = inspect.getsourcelines(part)  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
        for number, line in reversed(list(enumerate(lines, max(first, 1)))):
            if word in line.lower():
                return f"{inspect.getsourcefile(part)}, line {number}: {line.strip()[:100]}"  # type: ignore[arg-type]
    return "the activation of its last layer"


def _describe_error(error: Exception) -> str:
    """Its first line, and the user's line that led there."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and frame.filename != __file__]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:200]}{where}"


def measure_networks(_folder: Path, names: list[str], image_size: int | None) -> list[dict[str, Any]]:
    """`{"name", "image_size", "parameters", "bytes_per_image"}` of each network, at its own image size by default.

    `python -m rampline.training.models rampline/config/networks.json` writes those that `rampline models` lists.

    Of a network of `keras.applications` it is the backbone, without the head that Rampline gives it.
    """
    return [_measure_network(name, image_size) for name in names]


def _measure_network(name: str, image_size: int | None) -> dict[str, Any]:
    if name in MODELS:
        size = image_size or DataConfig().image_size
        model = make_model(ModelConfig(name=name), image_shape=(size, size, 3), classes=GUESSED_CLASSES)
    else:
        make = getattr(keras.applications, name)
        # The size that its weights were trained with is that of the whole network, where that does not take any.
        size = image_size or make(weights=None).input_shape[1] or IMAGENET_SIZE
        model = make(weights=None, include_top=False, input_shape=(size, size, 3))
    keras.backend.clear_session()
    # What the backward pass needs again. An estimate: operations that are put together keep less, convolutions need
    # room to work in.
    outputs = [output for layer in model.layers for output in keras.tree.flatten(layer.output)]
    size_of = [int(np.prod(output.shape[1:])) * np.dtype(output.dtype).itemsize for output in outputs]
    return {"name": name, "image_size": size, "parameters": model.count_params(), "bytes_per_image": sum(size_of)}


if __name__ == "__main__":
    networks = measure_networks(Path(), [*MODELS, *sorted(keras_names("applications", APPLICATIONS))], None)
    write_json(Path(sys.argv[1]), {network.pop("name"): network for network in networks})
