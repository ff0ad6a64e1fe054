"""What a user's function has compiled its model with: optimizer, learning rate, loss and metrics, taken at their word.

Each is tried on a few made-up examples first: what would be trained otherwise with several replicas is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.errors import ConfigError
from rampline.training.objective import LossFunction, increments, shares_of
from rampline.training.optimizers import LearningRate

# Arguments of `compile` that only an unset value goes with, and what else there is.
_NOT_TAKEN = {
    "loss_weights": "there is one loss",
    "weighted_metrics": "give them as metrics",
    "run_eagerly": "steps are compiled",
    "jit_compile": "the study has xla: true",
}
_OPTIMIZER_NOT_TAKEN = {
    "gradient_accumulation_steps": "each step updates the weights",
    "ema_overwrite_frequency": "averages are validated and saved, and training goes on from the weights",
}
# Functions of Keras that take probabilities or rates, and have no `from_logits`.
_OF_PROBABILITIES = ("kl_divergence", "poisson", "categorical_generalized_cross_entropy")
# What every run or its evaluation has, whatever it is compiled with.
_OUR_FIGURES = ("loss", "accuracy", "regularization_loss", "balanced_accuracy", "calibration_error")
# Figures of a row of sums, which every step has.
LARGEST_STATE = 10_000
# Rows that count, of those that a metric is tried with: the others have weight 0.
_FIRST, _SECOND = [0, 2], [3, 4]


@dataclass(frozen=True, kw_only=True)
class CompiledWith:
    """What a model was compiled with.

    Attributes:
        optimizer: without the loss scale that Keras puts round it in float16.
        loss: `None` where it was compiled without.
        metrics: by name, without the accuracy, which every run has; `None` where it was compiled without.
        one_hot: whether its loss and metrics take labels as shares of the classes.
        words: what it is, for people and for MLflow, by the names of settings.
    """

    optimizer: keras.optimizers.Optimizer
    learning_rate: LearningRate
    loss: LossFunction | None
    metrics: Mapping[str, keras.metrics.Metric] | None
    one_hot: bool
    words: Mapping[str, str]

    def sentence(self, name: str) -> str:
        """One line for people; `name` is the model's."""
        brought = ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in self.words.items())
        return f"model.name={name!r} is compiled, and trains with that instead of the study's: {brought}"


def read_compiled(model: keras.Model, *, name: str, classes: int) -> CompiledWith | None:
    """What the function `name` has compiled its model with; `None` where it has not.

    Raises:
        ConfigError: on what cannot be trained as it is meant, in one line.
    """
    for method in ("train_step", "compute_loss"):
        if _is_own(model, method):
            raise ConfigError(f"model.name={name!r} has a {method} of its own, which nothing would call")
    if not model.compiled:
        return None
    try:
        return _read(model, classes)
    except _NotTaken as reason:
        raise ConfigError(f"model.name={name!r} is compiled with {reason}") from reason


def _is_own(model: keras.Model, method: str) -> bool:
    return getattr(type(model), method) is not getattr(keras.Model, method)


class _NotTaken(Exception):
    pass


def _read(model: keras.Model, classes: int) -> CompiledWith:
    if _is_own(model, "compile"):
        raise _NotTaken("a compile of its own, which nothing would call")
    given: dict[str, Any] = {**model._compile_config.config, "jit_compile": model.jit_compile}
    for argument, instead in _NOT_TAKEN.items():
        if given[argument]:
            raise _NotTaken(f"{argument}={given[argument]!r}, which is not possible: {instead}")
    examples = _Examples(classes)
    loss, one_hot = _read_loss(given["loss"], examples)
    metrics = _read_metrics(given["metrics"], examples, one_hot=one_hot)
    optimizer: Any = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    learning_rate, rate = _read_learning_rate(optimizer)
    words = {"optimizer": _describe_optimizer(optimizer), "learning_rate": rate}
    words |= {"loss": _describe_loss(given["loss"])} if loss else {}
    words |= {"metrics": ", ".join(metrics)} if metrics else {}
    return CompiledWith(
        optimizer=optimizer, learning_rate=learning_rate, loss=loss, metrics=metrics, one_hot=one_hot, words=words
    )


class _Examples:
    """Made-up labels and logits, not as many as there are classes: one cannot be taken for the other."""

    def __init__(self, classes: int) -> None:
        count, draw = 6 if classes == 5 else 5, np.random.default_rng(0)
        labels = draw.integers(0, classes, count)
        # Losses of pairs depend on the others of a class, and of other ones: each row has both outside of its part.
        labels[_SECOND], labels[1] = labels[_FIRST], (labels[0] + 1) % classes
        self.labels = tf.constant(labels, tf.int32)
        self.logits = tf.constant(draw.normal(size=(count, classes)), tf.float32)

    def taken(self, one_hot: bool, rows: list[int] | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Labels and logits, of all or of some rows."""
        labels = shares_of(self.labels, self.logits) if one_hot else self.labels
        return (labels, self.logits) if rows is None else (tf.gather(labels, rows), tf.gather(self.logits, rows))


def _read_learning_rate(optimizer: Any) -> tuple[LearningRate, str]:
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or hasattr(optimizer, "optimizers"):
        raise _NotTaken(f"{type(optimizer).__name__}, which holds other optimizers: give it one")
    for argument, reason in _OPTIMIZER_NOT_TAKEN.items():
        if getattr(optimizer, argument, None):
            raise _NotTaken(f"an optimizer with {argument}, which is not possible: {reason}")
    rate = optimizer._learning_rate
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        return _of_steps(rate), _describe(rate)
    if not isinstance(rate, keras.Variable):
        raise _NotTaken("a function for a learning rate: give it a number or a LearningRateSchedule")
    value = float(np.asarray(rate.value))
    return (lambda step: tf.fill(tf.shape(step), tf.constant(value, step.dtype))), f"{value:g}"


def _of_steps(schedule: Callable[[tf.Tensor], tf.Tensor]) -> LearningRate:
    """A schedule of Keras takes one step at a time."""

    def rate(step: tf.Tensor) -> tf.Tensor:
        if step.shape.rank:
            return tf.map_fn(rate, step)
        return tf.cast(schedule(step), step.dtype)

    return rate


def _read_loss(given: Any, examples: _Examples) -> tuple[LossFunction | None, bool]:
    """The loss, and whether it takes labels as shares."""
    if given is None:
        return None, False
    if isinstance(given, list | tuple | dict):
        raise _NotTaken("several losses, where there is one output")
    found = keras.losses.get(given)
    loss = found if isinstance(found, keras.losses.Loss) else _OfFunction(found)
    if loss.reduction not in ("sum_over_batch_size", "mean"):
        raise _NotTaken(
            f"a loss with reduction={loss.reduction!r}, which is not possible: the sum is divided by the examples of "
            "the global batch"
        )
    _check_takes_logits(f"the loss {_describe_loss(given)}", getattr(loss, "fn", None), loss)
    one_hot = _finds_one_hot(loss, examples)

    def losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        if labels.shape.rank == 2 and not one_hot:
            raise ConfigError("the model's loss takes classes: labels that data.augment mixes need a one-hot loss")
        return _call_loss(loss, shares_of(labels, logits) if one_hot else labels, logits)

    few = losses(*examples.taken(False, _FIRST)).numpy()
    if not np.allclose(few, losses(*examples.taken(False)).numpy()[_FIRST], rtol=1e-4):
        raise _NotTaken("a loss of an example that depends on the others of its batch, which replicas share")
    return losses, one_hot


class _OfFunction(keras.losses.Loss):
    def __init__(self, function: LossFunction) -> None:
        super().__init__()
        self.fn = function

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return self.fn(y_true, y_pred)


def _call_loss(loss: Any, labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """What `Loss.__call__` does before it reduces."""
    return loss.call(tf.cast(labels, loss.dtype), tf.cast(logits, loss.dtype))


def _finds_one_hot(loss: keras.losses.Loss, examples: _Examples) -> bool:
    reason = ""
    for one_hot in (False, True):
        labels, logits = examples.taken(one_hot)
        try:
            shape = tuple(_call_loss(loss, labels, logits).shape)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            reason = reason or f"fails: {_first_line(error)}"
            continue
        if shape == labels.shape[:1]:
            return one_hot
        reason = f"gives the shape {shape}"
    raise _NotTaken(f"a loss that must give a number for each example, (batch,), and {reason}")


def _check_takes_logits(what: str, function: Any, owner: Any) -> None:
    """Keras' functions and metrics take probabilities unless they are told otherwise."""
    parameters = inspect.signature(function).parameters.values() if function else ()
    settings = {parameter.name: parameter.default for parameter in parameters} | getattr(owner, "_fn_kwargs", {})
    takes_logits = settings.get("from_logits", getattr(owner, "_from_logits", None))
    reason = f"{what}, which takes probabilities, and a model gives logits"
    if takes_logits is False:
        raise _NotTaken(f"{reason}: set from_logits=True")
    # A function or a metric of the user's may make probabilities itself.
    if takes_logits or not (function or type(owner)).__module__.startswith("keras."):
        return
    threshold = settings.get("threshold", getattr(owner, "threshold", None))
    thresholds = getattr(owner, "thresholds", () if threshold is None else (threshold,))
    if getattr(function, "__name__", "") in _OF_PROBABILITIES or any(0 < one <= 1 for one in thresholds):
        raise _NotTaken(reason)


def _read_metrics(given: Any, examples: _Examples, *, one_hot: bool) -> dict[str, keras.metrics.Metric] | None:
    if given is None:
        return None
    if isinstance(given, dict):
        raise _NotTaken("metrics for several outputs, where there is one")
    metrics: dict[str, keras.metrics.Metric] = {}
    for one in keras.tree.flatten(given):
        if isinstance(one, str) and one.lower() in ("accuracy", "acc"):
            continue
        metric = _make_metric(one)
        if metric.name in metrics or metric.name in _OUR_FIGURES:
            raise _NotTaken(f"a metric called {metric.name!r}, a name that is taken: give it another")
        if not re.fullmatch(r"\w[\w.-]*", metric.name):
            raise _NotTaken(f"a metric called {metric.name!r}: its name must be of letters, digits, '_', '.' and '-'")
        _check_metric(metric, examples, one_hot=one_hot)
        metrics[metric.name] = metric
    return metrics


def _make_metric(given: Any) -> keras.metrics.Metric:
    found: Any = keras.metrics.get(given)
    if isinstance(found, keras.metrics.Metric):
        return found
    name = given if isinstance(given, str) else getattr(found, "__name__", type(found).__name__)
    return keras.metrics.MeanMetricWrapper(found, name=name)


def _check_metric(metric: Any, examples: _Examples, *, one_hot: bool) -> None:
    """Its state must add up over examples, and rows of weight 0 must count for nothing."""
    what = f"the metric {metric.name!r}"
    _check_takes_logits(what, getattr(metric, "_fn", None), metric)
    labels, logits = examples.taken(one_hot)
    weights = np.zeros(labels.shape[0], np.float32)
    weights[[*_FIRST, *_SECOND]] = 1
    try:
        if not metric.variables:
            # Some make them when they see the first examples.
            metric.stateless_update_state([], labels, logits, sample_weight=tf.constant(weights))
        together = increments(metric, labels, logits, tf.constant(weights))
        rows = [examples.taken(one_hot, rows) for rows in (_FIRST, _SECOND)]
        apart = [increments(metric, *pair, tf.ones(2)) for pair in rows]
        begins = metric.stateless_reset_state()
        shape = tuple(keras.ops.shape(metric.stateless_result(together)))
    except Exception as error:
        raise _NotTaken(f"{what}, which fails: {_first_line(error)}") from error
    adds_up = all(np.allclose(a + b, c, atol=1e-4) for a, b, c in zip(*apart, together, strict=True))
    if not adds_up or any(np.any(np.asarray(keras.ops.convert_to_numpy(state))) for state in begins):
        raise _NotTaken(
            f"{what}, which cannot be put together from replicas: its state must begin at 0, add up over examples, and "
            "leave out those of sample_weight 0"
        )
    if shape:
        raise _NotTaken(f"{what}, whose result has the shape {shape}: it must be a number")
    size = sum(int(np.prod(v.shape)) for v in metric.variables)
    if size > LARGEST_STATE:
        raise _NotTaken(f"{what}, whose state has {size:,} numbers: at most {LARGEST_STATE:,} are told by every step")


def _describe_optimizer(optimizer: keras.optimizers.Optimizer) -> str:
    config = _settings_of(optimizer)
    unset = {"name", "learning_rate"} | (set() if config.get("use_ema") else {"ema_momentum"})
    return _write(type(optimizer).__name__, {name: value for name, value in config.items() if name not in unset})


def _describe(thing: Any) -> str:
    """Its class, and its settings where it tells them."""
    untold = ("name", "reduction", "axis")
    settings = {name: value for name, value in _settings_of(thing).items() if name not in untold}
    return _write(type(thing).__name__, settings)


def _settings_of(thing: Any) -> dict[str, Any]:
    try:
        return thing.get_config()
    except (NotImplementedError, TypeError):  # the user's, which does not say how it is made again
        return {}


def _describe_loss(given: Any) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, keras.losses.Loss):
        return getattr(given, "__name__", type(given).__name__)
    return _describe(given)


def _write(name: str, settings: Mapping[str, Any]) -> str:
    plain = {
        key: value for key, value in settings.items() if isinstance(value, int | float | str) and value is not False
    }
    text = ", ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in plain.items()
    )
    return f"{name}({text})" if text else name


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')[:160]}"
