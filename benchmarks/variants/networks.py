"""The networks as a user writes them from the published tutorials: float images of the model's range in, logits out."""

from __future__ import annotations

import keras
from keras import layers

from benchmarks.variants.work import Work


def make_network(work: Work) -> keras.Model:
    """The network of that work, without the scaling of images that the product makes a part of it."""
    return _convnet(work) if work.model == "convnet" else _mobilenet(work)


def scale(images, work: Work):
    """What the network expects of uint8 images cast to float32: [0, 1], or [-1, 1] for MobileNetV2."""
    return images / 255.0 if work.model == "convnet" else images / 127.5 - 1.0


def _convnet(work: Work) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input(work.image_shape),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(work.classes),
        ]
    )


def _mobilenet(work: Work) -> keras.Model:
    backbone = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=work.image_shape)
    return keras.Sequential(
        [
            backbone,
            layers.GlobalAveragePooling2D(),
            layers.Dense(512, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(work.classes),
        ]
    )
