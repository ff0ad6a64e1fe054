"""The networks: what goes in and out, how large they are, and what they start from."""

import dataclasses
import functools
import inspect
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from command_line import wait_until
from file_server import serve
from keras.src.applications import efficientnet, mobilenet_v2
from keras.src.backend import config as keras_config
from keras.src.utils import file_utils
from processes import processes_of

from rampline.config import ModelConfig, RunConfig
from rampline.config.keras_names import APPLICATIONS, keras_names
from rampline.data.dataset import PreparedDataset
from rampline.errors import ConfigError, DownloadFailed
from rampline.files import locked
from rampline.jobs.job import Job, JobFailed, run_job
from rampline.jobs.local import LOCAL
from rampline.record.checkpoints import Progress
from rampline.training.checkpoint import load_model_weights, restore_newest, save_checkpoint
from rampline.training.models import check_own_model, downloads_whole, load_keras_file, make_model
from rampline.training.state import make_state

# NumPy 2 complains about how Keras reads its variables.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")

FACTORY = """
import keras

def net(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))
"""


def build(name: str, image_shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, **values) -> keras.Model:
    return make_model(ModelConfig(name=name, **values), image_shape=image_shape, classes=classes)


def images(shape: tuple[int, int, int], count: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def weight_layers(model: keras.Model) -> list[keras.layers.Layer]:
    return [layer for layer in model.layers if layer.weights]


@pytest.fixture(scope="module")
def mobilenet() -> keras.Model:
    """From grey images, with a frozen backbone."""
    keras.utils.set_random_seed(0)
    return build("MobileNetV2", (32, 32, 1), classes=5, trainable="head", head_units=16)


@pytest.mark.parametrize("name", ["convnet", "convnet1", "convnet7"])
@pytest.mark.parametrize("shape, classes", [((28, 28, 1), 10), ((20, 20, 3), 2)])
def test_bytes_go_in_and_float_logits_come_out(name, shape, classes):
    model = build(name, shape, classes)
    logits = model(images(shape))
    assert tuple(logits.shape) == (3, classes)
    assert logits.dtype == "float32"
    assert model.inputs[0].dtype == "uint8"
    assert float(np.abs(logits).max()) < 10, "images are scaled inside the model"
    assert not np.allclose(np.sum(logits, axis=1), 1), "no softmax"


def test_the_convnet_has_121_930_parameters():
    model = build("convnet")
    # 3*3*1*32+32, 3*3*32*64+64, 5*5*64*64+64, 64*10+10
    assert [layer.count_params() for layer in weight_layers(model)] == [320, 18496, 102464, 650]
    assert model.count_params() == 121_930


def test_convnet1_has_one_convolution():
    # 3*3*1*32+32, 13*13*32*64+64, 64*10+10
    assert [layer.count_params() for layer in weight_layers(build("convnet1"))] == [320, 346_176, 650]


def test_convnet7_has_seven_weight_layers():
    layers = weight_layers(build("convnet7"))
    assert [type(layer).__name__ for layer in layers] == ["Conv2D"] * 5 + ["Dense"] * 2
    assert [layer.count_params() for layer in layers] == [160, 4640, 9248, 18496, 73856, 16512, 1290]
    # Of 299 pixels 10 x 10 are left after five poolings.
    assert weight_layers(build("convnet7", (299, 299, 3)))[5].count_params() == 10 * 10 * 128 * 128 + 128


@pytest.mark.parametrize("name", ["convnet", "convnet7"])
def test_logits_are_float32_under_mixed_precision(name):
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        model = build(name)
        assert model(images((28, 28, 1))).dtype == "float32"
        assert weight_layers(model)[0].compute_dtype == "bfloat16"
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_a_backbone_takes_grey_images_and_stays_frozen(mobilenet):
    assert mobilenet(images((32, 32, 1))).shape == (3, 5)
    trainable = [variable.path for variable in mobilenet.trainable_variables]
    # 1280*16+16 and 16*5+5.
    assert [int(np.prod(variable.shape)) for variable in mobilenet.trainable_variables] == [20480, 16, 80, 5]
    assert trainable[-1].startswith("logits/")
    assert len(mobilenet.non_trainable_variables) > 200


@pytest.mark.long
def test_a_frozen_backbone_is_not_changed_by_training(mobilenet):
    before = [variable.value.numpy() for variable in mobilenet.variables]
    bias = mobilenet.trainable_variables[-1].value.numpy()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    mobilenet.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss)
    mobilenet.train_on_batch(images((32, 32, 1)), np.array([0, 1, 2]))
    weights = [(variable, old) for variable, old in zip(mobilenet.variables, before, strict=True)]
    backbone = [(v, old) for v, old in weights if not any(v is t for t in mobilenet.trainable_variables)]
    kept = [np.array_equal(v.value.numpy(), old) for v, old in backbone if "seed_generator" not in v.path]
    assert len(kept) > 200
    assert all(kept)
    assert not np.array_equal(mobilenet.trainable_variables[-1].value.numpy(), bias)


@pytest.mark.parametrize(
    "name, shape", [("convnet", (28, 28, 1)), pytest.param("MobileNetV2", (32, 32, 1), marks=pytest.mark.long)]
)
def test_a_saved_model_loads_in_safe_mode_with_equal_logits(tmp_path, mobilenet, name, shape):
    model = mobilenet if name == "MobileNetV2" else build(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_array_equal(loaded(images(shape)), model(images(shape)))


@pytest.mark.long
def test_a_backbone_file_is_loaded(tmp_path):
    keras.utils.set_random_seed(1)
    backbone = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(32, 32, 3))
    backbone.save_weights(tmp_path / "backbone.weights.h5")
    model = build("MobileNetV2", (32, 32, 3), weights=str(tmp_path / "backbone.weights.h5"))
    inner = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    assert len(inner.weights) == len(backbone.weights) == 260
    for found, saved in zip(inner.weights, backbone.weights, strict=True):
        np.testing.assert_array_equal(found.value.numpy(), saved.value.numpy())
    assert all(layer.trainable for layer in model.layers)


@pytest.mark.parametrize("weights", ["imagenet", "file"])
def test_an_efficientnet_is_rebuilt_without_the_weights_that_it_began_with(tmp_path, monkeypatch, weights):
    monkeypatch.setattr(efficientnet, "DEFAULT_BLOCKS_ARGS", efficientnet.DEFAULT_BLOCKS_ARGS[:1])
    make = functools.partial(keras.applications.EfficientNetB0, include_top=False, input_shape=(32, 32, 3))
    published, file = make(weights=None), str(tmp_path / "published.weights.h5")
    layer = next(layer for layer in published.layers if isinstance(layer, keras.layers.Normalization))
    layer.adapt_mean.assign([0.485, 0.456, 0.406])
    layer.adapt_variance.assign([0.229, 0.224, 0.225])
    published.save_weights(file)
    monkeypatch.setattr(file_utils, "get_file", lambda *_, **__: file)

    model = build("EfficientNetB0", (32, 32, 3), weights="imagenet" if weights == "imagenet" else file)
    pixels = images((32, 32, 3))
    backbone = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    expected = make(weights="imagenet")(pixels)
    np.testing.assert_allclose(backbone(pixels), expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())

    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    path = save_checkpoint(tmp_path, Progress(step=1), model, optimizer)
    evaluated, resumed = (build("EfficientNetB0", (32, 32, 3)) for _ in range(2))
    load_model_weights(path, evaluated)
    restore_newest(tmp_path, resumed, optimizer, warn=pytest.fail)
    for again in (evaluated, resumed):
        np.testing.assert_array_equal(again(pixels), model(pixels))


FETCHING = """
from keras.src.backend import config
from keras.src.utils import file_utils
from rampline.training.models import downloads_whole

def fetch(input_shape, classes):
    config._KERAS_DIR = {home!r}
    with downloads_whole(lambda call: None):
        file_utils.get_file("net.h5", {url!r}, cache_subdir="models")
    return net(input_shape, classes)
"""


@pytest.mark.slow
def test_weights_that_keras_downloads_are_whole_or_absent_and_fetched_once(forks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content, file = os.urandom(20 * 65536), tmp_path / "models" / "net.h5"
    model = {"name": "fetching_network:fetch", "image_shape": [8, 8, 1], "classes": 3}
    killed, *others, late = [
        Job(function="models", what="the download", folder=tmp_path / name, arguments={"models": [model]})
        for name in ("killed", "first", "second", "late")
    ]
    with serve(content, pause_seconds=0.2) as server, ThreadPoolExecutor() as pool:
        (tmp_path / "fetching_network.py").write_text(FACTORY + FETCHING.format(home=str(tmp_path), url=server.url))
        ended = pool.submit(run_job, killed, launcher=LOCAL)
        wait_until(lambda: bool(server.paths), 60)
        (process,) = processes_of(killed.folder)
        os.kill(process, signal.SIGKILL)
        with pytest.raises(JobFailed, match="was ended by signal 9"):
            ended.result()
        assert not file.exists()
        list(pool.map(lambda job: run_job(job, launcher=LOCAL), others))
    assert file.read_bytes() == content
    assert len(server.paths) == 2
    # Nothing is left of the one that was killed, and who finds the file writes nothing beside it.
    lock, found = sorted(file.parent.iterdir())
    assert (lock.name, found) == (f".rampline-{os.getuid()}.lock", file)
    lock.unlink()
    run_job(late, launcher=LOCAL)
    assert list(file.parent.iterdir()) == [file]


def test_a_role_that_downloads_goes_on_and_so_does_one_that_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(keras_config, "_KERAS_DIR", str(tmp_path))
    content, calls = os.urandom(5 * 65536), list[str]()
    with serve(content) as server, downloads_whole(calls.append):
        with locked(tmp_path / "models" / f".rampline-{os.getuid()}.lock"):
            waiting = threading.Thread(target=lambda: file_utils.get_file("a.h5", server.url, cache_subdir="models"))
            waiting.start()
            wait_until(lambda: len(calls) >= 2, 20)
            assert server.paths == []
        waiting.join()
        assert (tmp_path / "models" / "a.h5").read_bytes() == content
    assert set(calls) == {"download", "load"}
    assert calls[-1] == "load"
    assert len(calls) > 3 + len(content) / 65536


def test_weights_that_do_not_come_may_come_later_and_those_that_are_refused_do_not(tmp_path, digits, monkeypatch):
    monkeypatch.setattr(keras_config, "_KERAS_DIR", str(tmp_path))
    config = RunConfig(model=ModelConfig(name="MobileNetV2", weights="imagenet"))
    for status, kind, reason in ((503, DownloadFailed, "HTTP Error 503"), (404, ConfigError, "404 -- Not Found")):
        with serve(b"", status=status) as server:
            monkeypatch.setattr(mobilenet_v2, "BASE_WEIGHT_PATH", server.url + "/")
            with pytest.raises(kind, match=reason) as failure:
                make_state(config, large(digits), tf.distribute.get_strategy())
        assert isinstance(failure.value, DownloadFailed) == (status == 503)
        assert "\n" not in str(failure.value)
    with pytest.raises(DownloadFailed, match="Connection refused"):
        make_state(config, large(digits), tf.distribute.get_strategy())


def test_a_lack_of_memory_is_no_matter_of_the_weights(monkeypatch):
    def fail(**_: object) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "3 GiB wanted")

    monkeypatch.setattr(keras.applications, "MobileNetV2", functools.wraps(keras.applications.MobileNetV2)(fail))
    with pytest.raises(tf.errors.ResourceExhaustedError, match="3 GiB"):
        build("MobileNetV2", (32, 32, 3))


def large(dataset: PreparedDataset) -> PreparedDataset:
    return dataclasses.replace(dataset, image_shape=(32, 32, 3))


def test_options_and_the_last_layers_of_a_backbone():
    model = build("MobileNetV2", (32, 32, 3), options={"alpha": 0.35}, trainable=5, head_units=0)
    backbone = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    # The narrow one ends in 112 of 320 channels times 0.35, and 1280.
    assert backbone.layers[-3].kernel.shape == (1, 1, 112, 1280)
    assert [layer.name for layer in backbone.layers if layer.trainable] == [
        layer.name for layer in backbone.layers[-5:]
    ]
    paths = [variable.path for variable in model.trainable_variables[:-2]]
    normalised = ["block_16_project", "block_16_project_BN", "block_16_project_BN", "Conv_1", "Conv_1_bn", "Conv_1_bn"]
    assert [path.split("/")[0] for path in paths] == normalised
    with pytest.raises(ConfigError, match=r"^model\.trainable=900 is not allowed: it must be at most 154, its layers$"):
        build("MobileNetV2", (32, 32, 3), trainable=900)


def test_frozen_batch_norm_keeps_everything_in_training():
    model = build("small_models:with_batch_norm", batch_norm="frozen")
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    before = [v.value.numpy() for layer in layers for v in layer.variables]
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dense = model.trainable_variables[-1].value.numpy()
    model.train_on_batch(images((28, 28, 1)), np.array([0, 1, 2]))
    after = [v.value.numpy() for layer in layers for v in layer.variables]
    assert before
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
    assert not np.array_equal(dense, model.trainable_variables[-1].value.numpy())


@pytest.mark.long
def test_a_keras_file_gives_its_weights_to_a_network_with_the_same_layers_alone(tmp_path, mobilenet):
    path = tmp_path / "saved.keras"
    mobilenet.save(path)
    model = build("MobileNetV2", (32, 32, 1), classes=5, head_units=16)
    load_keras_file(path, model)
    for ours, saved in zip(model.weights, mobilenet.weights, strict=True):
        np.testing.assert_array_equal(ours.value.numpy(), saved.value.numpy())
    for other in (build("MobileNetV2", (32, 32, 1), classes=4, head_units=16), build("convnet", (32, 32, 1))):
        with pytest.raises(ConfigError, match=r"^model\.weights=\S+saved\.keras cannot be loaded into "):
            load_keras_file(path, other)


def test_the_state_of_an_optimizer_in_a_keras_file_is_not_read(tmp_path):
    inputs = keras.Input((4,))
    saved, model = (keras.Model(inputs, keras.layers.Dense(2)(inputs)) for _ in range(2))
    for one, rate in ((saved, 0.5), (model, 0.1)):
        one.compile(keras.optimizers.SGD(rate), "mse")
    saved.train_on_batch(np.ones((3, 4)), np.ones((3, 2)))
    saved.save(tmp_path / "saved.keras")
    optimizer = model.optimizer
    load_keras_file(tmp_path / "saved.keras", model)
    np.testing.assert_array_equal(model.weights[0].value, saved.weights[0].value)
    assert model.optimizer is optimizer
    assert (int(optimizer.iterations), float(optimizer.learning_rate)) == (0, pytest.approx(0.1))


def test_a_file_of_a_larger_network_is_refused(tmp_path):
    """Keras would take the layers that it finds, and leave the others."""
    inputs = keras.Input((4,))
    x = keras.layers.Dense(4)(inputs)
    keras.Model(inputs, keras.layers.Dense(4)(x)).save(tmp_path / "two.keras")
    with pytest.raises(ConfigError, match=r"two\.keras cannot be loaded into one: it has 4 weights, not 2"):
        load_keras_file(tmp_path / "two.keras", keras.Model(inputs, x, name="one"))


def test_a_users_own_function_makes_the_model(tmp_path, monkeypatch):
    (tmp_path / "my_networks.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    model = build("my_networks:net", (6, 5, 3), classes=4)
    monkeypatch.delitem(sys.modules, "my_networks")
    assert model.count_params() == (6 * 5 * 3 + 1) * 4
    assert model(images((6, 5, 3))).shape == (3, 4)


SOFTMAXES = """
import keras
import numpy as np

def start(input_shape):
    inputs = keras.Input(input_shape, dtype="uint8")
    return inputs, keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))

def activation(input_shape, classes):
    inputs, x = start(input_shape)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="softmax")(x))

def operation(input_shape, classes):
    inputs, x = start(input_shape)
    return keras.Model(inputs, keras.ops.softmax(keras.layers.Dense(classes)(x)))

def nested(input_shape, classes):
    inputs, x = start(input_shape)
    return keras.Model(inputs, keras.Sequential([keras.layers.Dense(classes), keras.layers.Softmax()])(x))

class Network(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.flat, self.dense = keras.layers.Flatten(), keras.layers.Dense(classes)

    def call(self, images):
        return keras.ops.softmax(self.dense(self.flat(images)))

def subclass(input_shape, classes):
    model = Network(classes)
    model(np.zeros((1, *input_shape), np.float32))
    return model

def unbuilt(input_shape, classes):
    return Network(classes)

def float_images(input_shape, classes):
    inputs = keras.Input(input_shape)
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Flatten()(inputs)))

def for_102_classes(input_shape, classes):
    assert classes == 102
    return float_images(input_shape, classes)

def misspelt(input_shape, classes):
    return float_images(input_shape, clases)

def sigmoid(input_shape, classes):
    inputs, x = start(input_shape)
    return keras.Model(inputs, keras.layers.Dense(classes, activation="sigmoid")(x))

def sigmoid_operation(input_shape, classes):
    inputs, x = start(input_shape)
    return keras.Model(inputs, keras.ops.sigmoid(keras.layers.Dense(classes)(x)))

def nested_sigmoid(input_shape, classes):
    inputs, x = start(input_shape)
    return keras.Model(inputs, keras.Sequential([keras.layers.Dense(classes), keras.layers.Activation("sigmoid")])(x))

def gated(input_shape, classes):
    inputs, x = start(input_shape)
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.ops.sigmoid(keras.layers.Dense(8)(x))))
"""


@pytest.fixture
def softmaxes(tmp_path, monkeypatch):
    """The name of a module with the functions above."""
    (tmp_path / "softmaxes.py").write_text(SOFTMAXES)
    monkeypatch.syspath_prepend(tmp_path)
    yield "softmaxes"
    sys.modules.pop("softmaxes", None)


@pytest.mark.parametrize("classes", [4, None], ids=["prepared", "not prepared"])
@pytest.mark.parametrize("function, line", [("activation", 11), ("operation", 15), ("nested", 19), ("subclass", 27)])
def test_a_softmax_is_found_whatever_computes_it(softmaxes, function, line, classes):
    with pytest.raises(ConfigError, match=rf"ends in a softmax, .*softmaxes\.py, line {line}: "):
        check_own_model(f"{softmaxes}:{function}", image_shape=(8, 8, 3), classes=classes)


@pytest.mark.parametrize("function, line", [("sigmoid", 50), ("sigmoid_operation", 54), ("nested_sigmoid", 58)])
def test_a_sigmoid_at_the_end_is_found(softmaxes, function, line):
    with pytest.raises(ConfigError, match=rf"ends in a sigmoid, .* applies a softmax: .*softmaxes\.py, line {line}: "):
        check_own_model(f"{softmaxes}:{function}", image_shape=(8, 8, 3), classes=2)
    assert check_own_model(f"{softmaxes}:gated", image_shape=(8, 8, 3), classes=2) == []


def test_only_what_cannot_be_right_is_refused_while_classes_are_not_known(softmaxes):
    shape = (8, 8, 3)
    for function in ("float_images", "for_102_classes"):
        assert check_own_model(f"{softmaxes}:{function}", image_shape=shape, classes=None) == []
    with pytest.raises(ConfigError, match=r"fails: AssertionError: .*softmaxes\.py, line \d+"):
        check_own_model(f"{softmaxes}:for_102_classes", image_shape=shape, classes=4)
    with pytest.raises(
        ConfigError, match=r"fails: NameError: name 'clases' is not defined \(.*softmaxes\.py, line \d+"
    ):
        check_own_model(f"{softmaxes}:misspelt", image_shape=shape, classes=None)
    with pytest.raises(ConfigError, match="returns a model without weights"):
        check_own_model(f"{softmaxes}:unbuilt", image_shape=shape, classes=None)


UNKNOWN = "it must be convnet, convnet1, convnet7, a keras.applications name, or package.module:function"
WRONG = [
    ({"name": "resnet50"}, f"model.name='resnet50' is not known: {UNKNOWN}"),
    ({"name": "mobilenet_v2"}, f"model.name='mobilenet_v2' is not known: {UNKNOWN}"),
    ({"name": "no.such.module:net"}, "model.name='no.such.module:net' cannot be imported: No module named 'no'"),
    ({"name": "json:net"}, "model.name='json:net' cannot be imported: module 'json' has no attribute 'net'"),
    ({"name": ":net"}, "model.name=':net' cannot be imported: "),
    (
        {"name": "MobileNetV2", "weights": "/no/such.h5"},
        "model.weights='/no/such.h5' cannot be found: it must be none, ",
    ),
    ({"name": "MobileNetV2", "weights": "/no/such"}, "model.weights='/no/such' cannot be found: it must be none, "),
    (
        {"name": "MobileNetV2", "options": {"alfa": 1}},
        "unknown key model.options.alfa: did you mean model.options.alpha?",
    ),
    (
        {"name": "MobileNetV2", "options": {"classes": 3}},
        "unknown key model.options.classes: known: model.options.alpha",
    ),
    (
        {"name": "MobileNetV2", "options": {"alpha": "wide"}},
        "model.weights=none cannot be loaded into MobileNetV2 with {'alpha': 'wide'}: ",
    ),
    ({"name": "convnet", "weights": "/no.keras"}, "model.weights='/no.keras' cannot be found: it must be none, "),
    ({"name": "convnet", "weights": "imagnet"}, "model.weights='imagnet' cannot be found: it must be none, imagenet, "),
]


@pytest.mark.parametrize("values, message", WRONG, ids=[str(list(values.values())) for values, _ in WRONG])
def test_a_wrong_name_or_weights_is_one_clear_line(values, message):
    with pytest.raises(ConfigError) as failure:
        build(image_shape=(32, 32, 3), **values)
    assert str(failure.value).startswith(message)
    assert "\n" not in str(failure.value)


def test_the_names_that_are_known_without_tensorflow_are_those_that_there_are():
    functions = {name: value for name, value in vars(keras.applications).items() if inspect.isfunction(value)}
    assert set(keras_names("applications", APPLICATIONS)) == set(functions)
    assert {"include_top"} <= set.intersection(*(set(inspect.signature(f).parameters) for f in functions.values()))


@pytest.mark.filterwarnings("ignore:Skipping nested container")
def test_a_file_with_the_weights_of_another_network_is_refused(tmp_path):
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save_weights(tmp_path / "other.weights.h5")
    with pytest.raises(ConfigError, match=r"^model\.weights=\S+other\.weights\.h5 cannot be loaded into MobileNetV2: "):
        build("MobileNetV2", (32, 32, 3), weights=str(tmp_path / "other.weights.h5"))


@pytest.mark.parametrize("name, size", [("convnet", 8), ("MobileNetV2", 28)])
def test_images_that_are_too_small_are_one_clear_line(name, size):
    with pytest.raises(ConfigError) as failure:
        build(name, (size, size, 3))
    assert str(failure.value) == f"data.image_size={size} is too small for {name}"
    assert "\n" not in str(failure.value)
