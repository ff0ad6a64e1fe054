"""Loss, class weights and metrics by figures that are worked out by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from rampline.config import DataConfig, RunConfig
from rampline.training.objective import (
    CORRECT,
    EXAMPLES,
    LOSS_SUM,
    PENALTY_SUM,
    SUMS,
    Objective,
    make_class_weights,
    make_cross_entropy,
    make_metrics,
)

# Probabilities 1/7, 2/7 and 4/7 in each row, in another order.
LOGITS = np.log([[1.0, 2.0, 4.0], [4.0, 2.0, 1.0], [2.0, 4.0, 1.0]]).astype(np.float32)
LABELS, LN = [2, 1, 2], [math.log(7 / 4), math.log(7 / 2), math.log(7)]


def make_batch(labels: object = LABELS, weights: tuple[float, ...] = (1.0, 1.0, 1.0)) -> dict[str, tf.Tensor]:
    return {"labels": tf.constant(labels), "weights": tf.constant(weights)}


def losses(objective: Objective, *, training: bool, **batch) -> np.ndarray:
    return objective.losses(tf.constant(LOGITS), make_batch(**batch), training=training).numpy()


def test_smoothed_labels_are_those_of_keras_for_classes_and_for_shares():
    objective = Objective(make_cross_entropy(0.3))
    # A tenth of each label for each class.
    smooth = sum(LN) / 10
    expected = [0.7 * LN[0] + smooth, 0.7 * LN[1] + smooth, 0.7 * LN[2] + smooth]
    assert losses(objective, training=True) == pytest.approx(expected, rel=1e-6)
    shares = np.eye(3, dtype=np.float32)[LABELS]
    for training in (True, False):
        assert losses(objective, training=training, labels=shares) == pytest.approx(expected, rel=1e-6)


def test_mixed_labels_have_the_loss_of_their_shares():
    half = [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    expected = [(LN[0] + LN[1]) / 2, LN[0], LN[2]]
    assert losses(Objective(make_cross_entropy(0.0)), training=True, labels=half) == pytest.approx(expected, rel=1e-6)


def test_logits_of_half_precision_have_the_loss_of_float32():
    half, objective = tf.constant(LOGITS, tf.float16), Objective(make_cross_entropy(0.0))
    found, expected = (
        objective.losses(logits, make_batch(), training=True).numpy() for logits in (half, tf.cast(half, tf.float32))
    )
    np.testing.assert_array_equal(found, expected)


def test_class_weights_are_those_of_scikit_learn():
    config = RunConfig(data=DataConfig(class_weights="balanced"))
    weights = make_class_weights(config, np.array([0, 0, 0, 1, 1, 2]), 4)
    # n / (classes * count); of a class without images nothing is weighed.
    assert weights == pytest.approx([6 / 12, 6 / 8, 6 / 4, 6 / 4])
    assert make_class_weights(RunConfig(), np.array([0, 1]), 2) is None


def test_class_weights_multiply_the_loss_of_training_and_nothing_else():
    objective = Objective(make_cross_entropy(0.0), class_weights=np.array([1.0, 2.0, 0.5], np.float32))
    assert losses(objective, training=True) == pytest.approx([0.5 * LN[0], 2 * LN[1], 0.5 * LN[2]], rel=1e-6)
    assert losses(objective, training=False) == pytest.approx(LN, rel=1e-6)
    half = [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    assert objective.weights_of(tf.constant(half)).numpy() == pytest.approx([1.25, 1.0, 0.5])
    batch = make_batch()
    sums = objective.sums(
        tf.constant(LOGITS), objective.losses(tf.constant(LOGITS), batch, training=True), batch, tf.constant(0.0)
    )
    assert sums.numpy()[[CORRECT, EXAMPLES, PENALTY_SUM]].tolist() == [1.0, 3.0, 0.0]


def test_rows_of_weight_0_count_for_nothing_and_metrics_add_up():
    objective = Objective(make_cross_entropy(0.0), make_metrics(["top_2", "top_3"]))
    assert objective.width == SUMS + 4
    total = np.zeros(objective.width)
    for weights in ((1.0, 1.0, 0.0), (0.0, 0.0, 1.0)):
        batch = make_batch(weights=weights)
        own = objective.losses(tf.constant(LOGITS), batch, training=False)
        total += objective.sums(tf.constant(LOGITS), own, batch, tf.constant(0.0)).numpy()
    assert total[:SUMS] == pytest.approx([sum(LN), 1.0, 3.0, 0.0], rel=1e-6)
    # The right classes are the first, the second and the third in order.
    assert objective.figures(total) == pytest.approx({"top_2": 2 / 3, "top_3": 1.0})


def test_metrics_take_the_class_with_the_largest_share():
    objective = Objective(make_cross_entropy(0.0), make_metrics(["top_2"]))
    mixed = make_batch([[0.0, 0.4, 0.6], [0.0, 0.6, 0.4], [0.3, 0.0, 0.7]])
    sums = objective.sums(tf.constant(LOGITS), tf.zeros(3), mixed, tf.constant(0.0)).numpy()
    # By the classes 2, 1 and 2.
    assert (sums[LOSS_SUM], sums[CORRECT]) == (0.0, 1.0)
    assert objective.figures(sums)["top_2"] == pytest.approx(2 / 3)
