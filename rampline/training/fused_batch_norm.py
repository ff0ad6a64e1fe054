"""BatchNormalization in training by TensorFlow's fused operation, where Keras 3 puts it together from a dozen.

Each of the dozen goes over the whole batch once more, forward and backward: with MobileNetV2 on a processor that is
more work than all the convolutions. Keras knows: https://github.com/keras-team/keras-core/issues/225
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

# cuDNN takes none that is smaller, and TensorFlow would silently raise it.
_SMALLEST_EPSILON = 1.001e-5
_FUSED_DTYPES = (tf.float32, tf.float16, tf.bfloat16)


def fuse_batch_norm(model: keras.Model) -> int:
    """Let the BatchNormalization layers of a model train by the fused operation, nested ones too.

    What a layer computes stays the same up to rounding: outputs, gradients, and moving statistics, which hold the
    variance of the batch itself (divided by n) as Keras' do. Evaluation, frozen layers, and what the operation cannot
    do (a mask, images with the channels first, other ranks than 4, float64, an epsilon below 1.001e-5) stay with Keras;
    so do layers with `renorm` or `synchronized`, and subclasses with a `call` of their own. Weights, configuration and
    what is saved do not change.

    Returns:
        how many layers that is.
    """
    layers = [layer for layer in model._flatten_layers() if _can_fuse(layer)]
    for layer in layers:
        layer.call = partial(_call, layer, layer.call)
    return len(layers)


def _can_fuse(layer: keras.layers.Layer) -> bool:
    return (
        isinstance(layer, keras.layers.BatchNormalization)
        and type(layer).call is keras.layers.BatchNormalization.call
        and not (layer.renorm or layer.synchronized)
        and layer.axis in (-1, 3)
        and layer.epsilon >= _SMALLEST_EPSILON
    )


def _call(
    layer: keras.layers.BatchNormalization,
    keras_call: Callable[..., tf.Tensor],
    inputs: tf.Tensor,
    training: bool | None = None,
    mask: Any = None,
) -> tf.Tensor:
    is_fused = training and layer.trainable and mask is None
    if not is_fused or len(inputs.shape) != 4 or inputs.dtype not in _FUSED_DTYPES:
        return keras_call(inputs, training=training, mask=mask)
    channels = inputs.shape[-1]
    outputs, mean, variance = tf.compat.v1.nn.fused_batch_norm(
        inputs,
        scale=tf.ones((channels,)) if layer.gamma is None else keras.ops.cast(layer.gamma, "float32"),
        offset=tf.zeros((channels,)) if layer.beta is None else keras.ops.cast(layer.beta, "float32"),
        epsilon=layer.epsilon,
        is_training=True,
    )
    # The operation divides by n - 1: https://github.com/tensorflow/tensorflow/issues/55545
    values = tf.cast(tf.size(inputs, out_type=tf.int64) // channels, tf.float32)
    _follow(layer.moving_mean, mean, layer.momentum)
    _follow(layer.moving_variance, variance * (values - 1.0) / values, layer.momentum)
    return tf.cast(outputs, layer.compute_dtype)


def _follow(moving: keras.Variable, value: tf.Tensor, momentum: float) -> None:
    moving.assign(keras.ops.cast(moving, "float32") * momentum + value * (1.0 - momentum))
