"""What is chosen by name: networks, optimizers, augmentations and data sources, each one entry.

Settings are checked and described without TensorFlow, so an entry names its function, which is imported to be used.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An entry.

    Attributes:
        about: what it is, for people.
        at: where its function is, `module:function`, or the module itself; empty where there is nothing to do.
        argument: what follows its name and a colon; empty for nothing.
    """

    about: str
    at: str = ""
    argument: str = ""

    def load(self) -> Any:
        """Its function or module."""
        module, _, function = self.at.partition(":")
        loaded = importlib.import_module(module)
        return getattr(loaded, function) if function else loaded


# Functions of (image_shape, classes) that make a network; `model.name` may name other networks as well.
MODELS = {
    "convnet": Choice(about="two convolutions and a dense layer", at="rampline.training.models:convnet"),
    "convnet1": Choice(about="one convolution and a dense layer", at="rampline.training.models:convnet1"),
    "convnet7": Choice(about="five convolutions, a dense layer and dropout", at="rampline.training.models:convnet7"),
}

# Functions of (OptimizerConfig, learning rate).
OPTIMIZERS = {
    "adam": Choice(about="Adam", at="rampline.training.optimizers:make_adam"),
    "adamw": Choice(about="Adam, with the decay applied before the step", at="rampline.training.optimizers:make_adamw"),
    "sgd": Choice(about="gradient descent with momentum", at="rampline.training.optimizers:make_sgd"),
    "rmsprop": Choice(about="RMSprop", at="rampline.training.optimizers:make_rmsprop"),
}

# Functions of (images, draws): three uniform random numbers per image.
AUGMENTATIONS = {
    "none": Choice(about="the images as they are"),
    "flip": Choice(about="left-right flip with probability 1/2", at="rampline.pipeline.augment:flip"),
    "crop": Choice(about="random crop after 1/8 reflected padding", at="rampline.pipeline.augment:crop"),
    "flip_crop": Choice(about="both", at="rampline.pipeline.augment:flip_and_crop"),
}

# Modules: see `rampline.data.sources`.
SOURCES = {
    "digits": Choice(about="handwritten digits that come with scikit-learn", at="rampline.data.sources.digits"),
    "tfds": Choice(about="a set of TensorFlow Datasets", at="rampline.data.sources.tfds_set", argument="NAME"),
    "folder": Choice(about="a folder per class", at="rampline.data.sources.folder", argument="PATH"),
    "url": Choice(about="an archive on the web", at="rampline.data.sources.web_archive", argument="URL"),
    "csv": Choice(about="a table of images and labels", at="rampline.data.sources.csv_file", argument="PATH"),
}
