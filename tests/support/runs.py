"""Configurations of small runs for tests."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rampline.config import BatchConfig, ClusterConfig, LearningRateConfig, OptimizerConfig, RunConfig

SUPPORT = Path(__file__).parent
Steps = Callable[..., list[dict[str, np.ndarray]]]


def make_config(strategy: str, *, model: str = "convnet", batch: int = 28, **cluster: int) -> RunConfig:
    """A run of that strategy on the `digits` fixture; 28 does not divide its training split.

    SGD with momentum: Adam divides gradients of 1e-9 by their own size, and turns the rounding of a sum into an update.
    """
    config = RunConfig(
        strategy=strategy,
        batch=BatchConfig(size=batch, per="global"),
        steps_per_call=8,
        optimizer=OptimizerConfig(name="sgd"),
        learning_rate=LearningRateConfig(peak=0.02),
        cluster=ClusterConfig(**cluster),
    )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, name=model))


def role_environment() -> dict[str, str]:
    """Of processes that import models from `small_models`."""
    paths = [str(SUPPORT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
