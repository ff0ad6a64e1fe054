"""What a model is compiled with is taken as it is, or refused in one line."""

from typing import Any

import compiled_models
import keras
import numpy as np
import pytest
import tensorflow as tf

from rampline.errors import ConfigError
from rampline.training.compiled_model import CompiledWith, read_compiled

SPARSE = keras.losses.SparseCategoricalCrossentropy


def compile_network(**arguments: Any) -> keras.Model:
    model = compiled_models.network((4, 4, 1), 3)
    model.compile(**arguments)
    return model


def read(model: keras.Model) -> CompiledWith:
    found = read_compiled(model, name="m:f", classes=3)
    assert found is not None
    return found


def test_a_model_that_is_not_compiled_brings_nothing():
    assert read_compiled(compiled_models.network((4, 4, 1), 3), name="m:f", classes=3) is None


def test_optimizer_rate_loss_and_metrics_are_those_it_is_compiled_with():
    model = compiled_models.with_everything((4, 4, 1), 3)
    found = read(model)
    assert found.optimizer is model.optimizer
    assert found.learning_rate(tf.constant([0.0, 4.0, 14.0])).numpy() == pytest.approx([2e-3, 4e-3, 2e-3], rel=1e-3)
    assert list(found.metrics or {}) == ["top3", "f1", "margin"]
    labels, logits = np.array([0, 2], np.int32), np.array([[1.0, 2, 3], [3, 2, 1]], np.float32)
    assert found.loss is not None
    expected = keras.losses.categorical_crossentropy(np.eye(3)[labels], logits, from_logits=True, label_smoothing=0.1)
    for form in (labels, np.eye(3, dtype=np.float32)[labels]):
        assert found.loss(tf.constant(form), tf.constant(logits)).numpy() == pytest.approx(np.asarray(expected))
    assert found.sentence("m:f") == (
        "model.name='m:f' is compiled, and trains with that instead of the study's: optimizer AdamW(weight_decay=0.01, "
        "global_clipnorm=0.2, use_ema=True, ema_momentum=0.8, beta_1=0.9, beta_2=0.999, epsilon=1e-07), learning rate "
        "CosineDecay(initial_learning_rate=0.002, decay_steps=20, alpha=0, warmup_target=0.004, warmup_steps=4), loss "
        "CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), metrics top3, f1, margin"
    )


def test_a_loss_of_ones_own_takes_classes_and_what_is_left_out_is_the_studys():
    found = read(compiled_models.with_own_loss((4, 4, 1), 3))
    assert (found.metrics, found.words["loss"], found.words["learning_rate"]) == (None, "halved", "0.05")
    assert found.loss is not None
    assert found.loss(tf.constant([0]), tf.zeros((1, 3))).numpy() == pytest.approx([np.log(3) / 2])
    with pytest.raises(ConfigError, match=r"takes classes: labels that data\.augment mixes need a one-hot loss"):
        found.loss(tf.ones((1, 3)) / 3, tf.zeros((1, 3)))
    assert read(compile_network(optimizer="sgd")).loss is None


@pytest.mark.parametrize("name", ["Adafactor", "Muon", "ScheduleFreeAdamW"])
def test_every_optimizer_of_keras_is_taken(name):
    assert read(compile_network(optimizer=getattr(keras.optimizers, name)(0.1))).words["optimizer"].startswith(name)


def not_reduced(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(compiled_models.halved(y_true, y_pred))


def failing(y_true: Any, y_pred: Any) -> Any:
    raise ValueError("no such label")


# Made by the tests: with their variables TensorFlow makes its devices.
REFUSED = {
    "several losses": lambda: {"loss": [compiled_models.halved, "mse"]},
    "loss_weights=[2.0]": lambda: {"loss": "mse", "loss_weights": [2.0]},
    "weighted_metrics=": lambda: {"loss": "mse", "weighted_metrics": ["mse"]},
    "run_eagerly=True": lambda: {"run_eagerly": True},
    "the study has xla: true": lambda: {"jit_compile": True},
    "the loss sparse_categorical_crossentropy, which takes prob": lambda: {"loss": "sparse_categorical_crossentropy"},
    "depends on the others of its batch": lambda: {"loss": compiled_models.of_the_batch},
    "must give a number for each example, (batch,), and gives the shape ()": lambda: {"loss": not_reduced},
    "fails: ValueError: no such label": lambda: {"loss": failing},
    "a loss with reduction='sum'": lambda: {"loss": SPARSE(from_logits=True, reduction="sum")},
    "the metric 'margin', which cannot be put together": lambda: {"metrics": [compiled_models.LargestLogit()]},
    "whose result has the shape (3,)": lambda: {"loss": "mse", "metrics": [keras.metrics.F1Score()]},
    "the metric 'ce', which takes prob": lambda: {"metrics": [keras.metrics.SparseCategoricalCrossentropy(name="ce")]},
    "a metric called 'loss'": lambda: {"metrics": [compiled_models.Margin("loss")]},
    "a metric called 'balanced_accuracy'": lambda: {"metrics": [compiled_models.Margin("balanced_accuracy")]},
    "a metric called 'calibration_error'": lambda: {"metrics": [compiled_models.Margin("calibration_error")]},
    "a metric called 'a/b'": lambda: {"metrics": [compiled_models.Margin("a/b")]},
    "gradient_accumulation_steps": lambda: {"optimizer": keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)},
    "a function for a learning rate": lambda: {"optimizer": keras.optimizers.SGD(lambda: 0.1)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_trained_as_it_is_meant_is_refused_in_one_line(message):
    with pytest.raises(ConfigError) as failure:
        read(compile_network(**REFUSED[message]()))
    assert str(failure.value).startswith("model.name='m:f' is compiled with ")
    assert message in str(failure.value)
    assert "\n" not in str(failure.value)


def supervised_contrastive(y_true: Any, y_pred: Any) -> Any:
    """Of pairs of one class alone."""
    ops = keras.ops
    unit = ops.normalize(y_pred)
    is_pair = (y_true[:, None] == y_true[None]) & ~ops.eye(ops.shape(y_true)[0], dtype=bool)
    return -ops.sum(ops.where(is_pair, unit @ ops.transpose(unit), 0.0), axis=1)


@pytest.mark.parametrize("classes", [2, 5, 1000])
@pytest.mark.parametrize("loss", [keras.losses.Circle(), supervised_contrastive])
def test_losses_of_pairs_are_refused_whatever_the_number_of_classes(loss, classes):
    model = compiled_models.network((4, 4, 1), classes)
    model.compile(loss=loss)
    with pytest.raises(ConfigError, match="depends on the others of its batch"):
        read_compiled(model, name="m:f", classes=classes)


OF_PROBABILITIES = {
    "losses": [
        ("KLDivergence", {}),
        ("kl_divergence", {}),
        ("Poisson", {}),
        ("CategoricalGeneralizedCrossEntropy", {}),
    ],
    "metrics": [
        *[(name, {}) for name in ("KLDivergence", "kl_divergence", "AUC", "BinaryAccuracy", "binary_accuracy")],
        *[(name, {}) for name in ("Precision", "Recall", "TruePositives", "FalsePositives", "TrueNegatives")],
        ("FalseNegatives", {}),
        ("PrecisionAtRecall", {"recall": 0.5}),
        ("RecallAtPrecision", {"precision": 0.5}),
        ("SensitivityAtSpecificity", {"specificity": 0.5}),
        ("SpecificityAtSensitivity", {"sensitivity": 0.5}),
        ("F1Score", {"average": "macro", "threshold": 0.5}),
    ],
}
OF_LOGITS = [
    *[(name, {"top_k": 1}) for name in ("Precision", "Recall")],
    ("F1Score", {"average": "macro"}),
    ("TruePositives", {"thresholds": 0}),
    ("AUC", {"from_logits": True}),
]


def compile_with(kind: str, name: str, options: dict) -> keras.Model:
    found = getattr(getattr(keras, kind), name)
    given = found(**options) if isinstance(found, type) else found
    is_loss = kind == "losses"
    return compile_network(loss=given if is_loss else "mse", metrics=None if is_loss else [given])


@pytest.mark.parametrize(
    "kind, name, options", [(kind, *one) for kind in OF_PROBABILITIES for one in OF_PROBABILITIES[kind]]
)
def test_what_takes_probabilities_is_refused_also_where_it_cannot_be_told_otherwise(kind, name, options):
    with pytest.raises(ConfigError, match=", which takes probabilities, and a model gives logits"):
        read(compile_with(kind, name, options))


@pytest.mark.parametrize("name, options", OF_LOGITS)
def test_metrics_that_rank_or_have_thresholds_for_logits_are_taken(name, options):
    assert len(read(compile_with("metrics", name, options)).metrics or {}) == 1


class WithItsOwnStep(keras.Sequential):
    """Its step would not be called."""

    def train_step(self, *_: Any) -> dict:
        return {}


class WithItsOwnLoss(keras.Sequential):
    """Its loss would not be computed."""

    def compute_loss(self, *_: Any, **__: Any) -> float:
        return 0.0


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("own, method", [(WithItsOwnStep, "train_step"), (WithItsOwnLoss, "compute_loss")])
def test_a_step_or_a_loss_of_its_own_is_refused(own: type[keras.Sequential], method: str, is_compiled: bool):
    model = own([keras.Input((2,)), keras.layers.Dense(3)])
    if is_compiled:
        model.compile("sgd")
    with pytest.raises(ConfigError, match=f"^model.name='m:f' has a {method} of its own, which nothing would call$"):
        read_compiled(model, name="m:f", classes=3)
