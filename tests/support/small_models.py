"""Networks for tests, imported by role processes as `small_models:NAME`."""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute.coordinator.values import RemoteValueImpl

from rampline.errors import DownloadFailed
from rampline.files import read_json
from rampline.record.run_directory import RunDirectory
from rampline.training import controller
from rampline.training.parameter_server import ParameterServerEngine

QUICK_STEPS = 12


def with_batch_norm(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A convolution with BatchNormalization."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3, strides=2)(x))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def synchronized(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """BatchNormalization by the statistics of the global batch, without ReLU, see `smooth`."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Conv2D(4, 3, strides=2, activation="tanh")(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.Flatten()(keras.layers.BatchNormalization(synchronized=True)(x))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def smooth(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Convolutions without ReLU or max-pooling.

    Where two inputs of a maximum are equal up to rounding, as in the flat background of a digit, another order of
    summation picks the other one and sends the gradient elsewhere: a jump, not an error of the strategy.
    """
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Rescaling(1 / 255)(inputs)
    for filters in (16, 32):
        x = keras.layers.Conv2D(filters, 3, strides=2, activation="tanh")(x)
    x = keras.layers.Dense(64, activation="tanh")(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def smooth_in_float32(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """`smooth`, where every layer insists on float32."""
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        return smooth(input_shape, classes)
    finally:
        keras.config.set_dtype_policy(policy)


def regularised(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Penalties on the weights, and on what a layer gives out."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    x = keras.layers.Dense(32, activation="tanh", kernel_regularizer=keras.regularizers.L2(1e-2))(x)
    x = keras.layers.ActivityRegularization(l2=1e-4)(x)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype=keras.config.floatx())(x))


@keras.saving.register_keras_serializable("rampline-tests")
class TakesMemory(keras.layers.Layer):
    """Fails where more than `ROWS` examples come at once, as for lack of memory: TensorFlow itself waits for 10 s."""

    ROWS = 14

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        def fail() -> None:
            raise MemoryError("3 GiB wanted")  # TensorFlow makes it a ResourceExhaustedError

        def take() -> tf.Tensor:
            with tf.control_dependencies([tf.numpy_function(fail, [], [])]):
                return tf.identity(inputs)

        return tf.cond(tf.shape(inputs)[0] > self.ROWS, take, lambda: inputs)


def large(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Has memory for 14 examples at once."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = TakesMemory()(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype=keras.config.floatx())(x))


def exploding(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Logits that overflow float32 after the first large update."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1e30)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


@keras.saving.register_keras_serializable("small_models")
class _Root(keras.layers.Layer):
    """Adds the root of a weight that is 0, where its slope is infinite."""

    def build(self, input_shape: tuple) -> None:
        self.weight = self.add_weight(shape=(), initializer="zeros", name="weight")

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs + keras.ops.sqrt(self.weight)


def with_infinite_gradient(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """After the first step, whose loss is finite, a weight is not."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = _Root()(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


@keras.saving.register_keras_serializable("small_models")
class _Held(keras.layers.Layer):
    """Passes its inputs on; the process that `faults.Hold` names stands still in its training step of that number.

    Only where the function of the step is called in the process of the role: not in a parameter server's workers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.file = Path(sys.argv[-1]) / "hold.json"
        hold = read_json(self.file) if self.file.is_file() else {}
        task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
        self.calls_left = hold["step"] if hold.get("role") == f"{task.get('type')}-{task.get('index')}" else 0

    def call(self, inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        if not training or not self.calls_left:
            return inputs
        with tf.control_dependencies([tf.numpy_function(self._wait, [], [])]):
            return tf.identity(inputs)

    def _wait(self) -> None:
        self.calls_left -= 1
        while self.calls_left < 1 and self.file.is_file():
            self.file.with_name("held").touch()
            time.sleep(0.01)


def with_all_state(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Everything a training can carry from step to step: moving statistics, and the state of Dropout's generator.

    A test may hold it in a step (`faults.Hold`).
    """
    inputs = keras.Input(input_shape, dtype="uint8")
    return _with_all_state(inputs, _Held()(inputs), classes)


def unhurried_with_all_state(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The same, as `unhurried`: a step takes 0.1 s, so that a call of some steps can be stopped within a second."""
    inputs = keras.Input(input_shape, dtype="uint8")
    return _with_all_state(inputs, _Brisk()(_Held()(inputs)), classes)


def slow_with_all_state(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The same, where a step takes 0.4 s: fewer of them take as long."""
    inputs = keras.Input(input_shape, dtype="uint8")
    return _with_all_state(inputs, _Slow()(_Held()(inputs)), classes)


def _with_all_state(inputs, x, classes: int) -> keras.Model:
    x = keras.layers.Rescaling(1 / 255)(x)
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(16, 3, strides=2)(x))
    x = keras.layers.Dropout(0.2)(keras.layers.Flatten()(keras.layers.ReLU()(x)))
    x = keras.layers.Dense(64, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


@keras.saving.register_keras_serializable()
class KeptMask(keras.layers.Layer):
    """Passes its inputs on, and keeps what its Dropout has left of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def build(self, input_shape: tuple) -> None:
        self.kept = self.add_weight(shape=(64,), initializer="zeros", trainable=False, aggregation="none", name="kept")

    def call(self, inputs, training=False):
        self.kept.assign(self.dropout(keras.ops.ones((64,)), training=training))
        return inputs


def with_kept_mask(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A linear network in which one can see what each replica has drawn."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = KeptMask()(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


def out_of_memory(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A network that no machine has room for."""
    raise MemoryError("3 GiB wanted for a weight")


def not_downloaded(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    raise DownloadFailed("http://x cannot be downloaded: HTTP Error 503: Service Unavailable")


def among_deterministic_operations(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """`smooth`, where TensorFlow refuses what is not deterministic, such as its clock."""
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return smooth(input_shape, classes)
    raise TypeError("an operation that is not deterministic is allowed")


def on_a_gpu_that_others_fill(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """TensorFlow finds no memory for its context on the GPU, at the first two starts of a run."""
    if int(os.environ["RAMPLINE_ATTEMPT"]) < 3:
        raise tf.errors.InternalError(None, None, "cudaSetDevice() on GPU:0 failed. Status: out of memory")
    return smooth(input_shape, classes)


def broken_import(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A network whose module needs what is not installed."""
    import no_such_module  # type: ignore[import-not-found]

    return no_such_module.network(input_shape, classes)


def slow(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A step takes 50 ms and computes next to nothing."""
    return keras.Sequential([keras.Input(input_shape), keras.layers.Flatten(), _Sleep(), keras.layers.Dense(classes)])


@keras.saving.register_keras_serializable("small_models")
class _Sleep(keras.layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(0.05), [], [])]):
            return tf.identity(inputs)


def unhurried(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """After two epochs a training step takes 2 s, until there is a file `go` in the run directory.

    It computes next to nothing, and can be stopped between two steps: tests that stop a training need no epochs to have
    the time for it.
    """
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(Unhurried()(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes, dtype="float32")(x))


@keras.saving.register_keras_serializable("small_models")
class Unhurried(keras.layers.Layer):
    """Passes its inputs on, see `unhurried`."""

    SECONDS = 2.0

    def call(self, inputs, training=False):
        if not training:
            return inputs
        with tf.control_dependencies([tf.numpy_function(lambda: _take_time(self.SECONDS), [], [])]):
            return tf.identity(inputs)


@keras.saving.register_keras_serializable("small_models")
class _Brisk(Unhurried):
    SECONDS = 0.1


@keras.saving.register_keras_serializable("small_models")
class _Slow(Unhurried):
    SECONDS = 0.4


_steps = itertools.count()


def _take_time(seconds: float) -> None:
    if next(_steps) < QUICK_STEPS:
        return
    go, end = Path(sys.argv[-1]) / "go", time.monotonic() + seconds
    while not go.exists() and time.monotonic() < end:
        time.sleep(0.02)


def ended_by_sigterm(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """As a shell and an engine tell of it."""
    os._exit(143)


def with_jumping_clock(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A network in a process whose clock jumps by days, twice a second."""
    real, jumps = time.time, [0.0, -86400.0, 86400.0]
    time.time = lambda: real() + jumps[int(real() * 2) % 3]
    return smooth(input_shape, classes)


def slow_to_save(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A network in a process whose first checkpoint takes 6.5 s."""
    save, seconds = controller.save_checkpoint, iter([6.5])

    def save_slowly(*arguments: Any, **named: Any) -> Path:
        time.sleep(next(seconds, 0.0))
        return save(*arguments, **named)

    controller.save_checkpoint = save_slowly
    return smooth(input_shape, classes)


def killed_in_the_probes(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """A network whose process is killed at the probes, as where they need more memory than there is."""
    controller.measure_run = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    return smooth(input_shape, classes)


def with_a_result_that_is_lost(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The chief kills worker 1 in the moment in which it copies the results of a training call from there."""
    copy, killed = RemoteValueImpl._copy_to_local, []

    def copy_from_a_lost_worker(self: RemoteValueImpl) -> object:
        results = self._values
        if isinstance(results, tuple) and "/task:1/" in results[0].device and not killed:
            roles = read_json(RunDirectory(Path(sys.argv[-1])).roles_file)["roles"]
            killed.append(next(role["pid"] for role in roles if (role["role"], role["index"]) == ("worker", 1)))
            os.kill(killed[0], signal.SIGKILL)
            time.sleep(0.5)  # it is gone, and the chief waits for the results, too
        return copy(self)

    RemoteValueImpl._copy_to_local = copy_from_a_lost_worker
    return with_batch_norm(input_shape, classes)


def with_a_result_that_is_lost_as_tensorflow_is(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """The same, where the chief does not wait for the repetition."""
    ParameterServerEngine._fetch = lambda self, call: call.fetch()
    return with_a_result_that_is_lost(input_shape, classes)


@keras.saving.register_keras_serializable()
class Halved(keras.layers.Layer):
    """A layer that Keras does not have."""

    def call(self, x):
        return x / 2


def with_own_layer(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Its file can be loaded where this module is imported."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = Halved()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Flatten()(x)))


def with_lambda(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Its file holds code, which nobody should run."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Lambda(lambda x: x / 2)(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Flatten()(x)))


@keras.saving.register_keras_serializable()
class Scaled(keras.layers.Layer):
    """Its author has forgotten an argument in `get_config`."""

    def __init__(self, factor: float = 1.0, **options) -> None:
        super().__init__(**options)
        self.factor = factor

    def get_config(self) -> dict:
        return {**super().get_config()}

    def call(self, x):
        return x * self.factor


def with_forgotten_argument(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """Its file loads as a network that has another factor."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(Scaled(3.0)(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))


@keras.saving.register_keras_serializable()
class Noisy(keras.layers.Layer):
    """Draws at random, also for a prediction."""

    def call(self, x):
        return x + tf.random.normal(())


def with_noise(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
    """No two answers of it are the same."""
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Dense(classes)(keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs)))
    return keras.Model(inputs, Noisy()(x))
