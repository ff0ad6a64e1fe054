"""What legitimately differs between replicas, taken out of a model: batch statistics and random draws."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from rampline.data.compiled import compiled
from rampline.parity.check import Neutralised

BATCH_STATISTICS = "each replica normalises with its own share of the batch: all use the statistics of one fixed batch"
RANDOM_DRAWS = "each replica draws its own random numbers: it runs as in evaluation"


def neutralise(model: keras.Model, images: tf.Tensor, strategy: tf.distribute.Strategy) -> tuple[Neutralised, ...]:
    """Let the layers that differ between replicas run as in evaluation, for good; nested models are looked into.

    BatchNormalization trains its gamma and beta still, and normalises with the statistics of `images`: those of a fresh
    model (mean 0, variance 1) let the signal of a deep network vanish, and every error with it. A frozen one runs as in
    evaluation anyway and is left alone.

    Args:
        model: made in the strategy's scope.
        images: (n, height, width, channels) uint8, the same on every side that is compared.
        strategy: its.

    Returns:
        which kinds of layers were changed, how many, and why.
    """
    random = [layer for layer in random_layers(model) if layer._call_has_training_arg]
    normalising = [x for x in _flatten(model) if isinstance(x, keras.layers.BatchNormalization) and x.trainable]
    # Random layers first: their draws would change the statistics.
    _run_as_in_evaluation(random)
    if normalising:
        _take_statistics(model, normalising, images, strategy)
    _run_as_in_evaluation(normalising)
    why = {**dict.fromkeys(_kinds(normalising), BATCH_STATISTICS), **dict.fromkeys(_kinds(random), RANDOM_DRAWS)}
    counts = Counter([*_kinds(normalising), *_kinds(random)])
    return tuple(Neutralised(layer=kind, count=count, why=why[kind]) for kind, count in counts.items())


def random_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Layers that draw random numbers; one without an argument `training` cannot be neutralised."""
    return [layer for layer in _flatten(model) if getattr(layer, "_seed_generators", None)]


def _flatten(model: keras.Model) -> list[keras.layers.Layer]:
    return list(model._flatten_layers())


def _kinds(layers: Sequence[keras.layers.Layer]) -> list[str]:
    return [type(layer).__name__ for layer in layers]


def _take_statistics(
    model: keras.Model,
    layers: Sequence[keras.layers.BatchNormalization],
    images: tf.Tensor,
    strategy: tf.distribute.Strategy,
) -> None:
    """Set the moving statistics to those of `images`: every replica computes the same, and nothing is exchanged."""
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0

    def forward() -> None:
        model(images, training=True)

    compiled(lambda: strategy.run(forward))()
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def _run_as_in_evaluation(layers: Sequence[keras.layers.Layer]) -> None:
    for layer in layers:
        layer.call = _without_training(layer.call)


def _without_training(call: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(call)

    def call_as_in_evaluation(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(*args, **kwargs)
        bound.arguments["training"] = False
        return call(*bound.args, **bound.kwargs)

    return call_as_in_evaluation
