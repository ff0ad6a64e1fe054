"""Small runs for tests: their configurations, and checkpoints of other versions."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rampline.config import (
    BatchConfig,
    ClusterConfig,
    ExplainConfig,
    LearningRateConfig,
    LossConfig,
    OptimizerConfig,
    RunConfig,
)
from rampline.record.run_directory import RunDirectory

SUPPORT = Path(__file__).parent
# Of the fixture `make_run`.
MakeRun = Callable[..., RunDirectory]


def make_config(strategy: str, *, model: str = "convnet", batch: int = 28, **cluster: Any) -> RunConfig:
    """A run of that strategy on the `digits` fixture; 28 does not divide its training split.

    SGD with momentum: Adam divides gradients of 1e-9 by their own size, and turns the rounding of a sum into an update.
    No probes: they take longer than the training.
    """
    config = RunConfig(
        strategy=strategy,  # type: ignore[arg-type]  # it is checked
        batch=BatchConfig(size=batch, per="global"),
        steps_per_call=8,
        optimizer=OptimizerConfig(name="sgd"),
        learning_rate=LearningRateConfig(peak=0.02),
        cluster=ClusterConfig(**cluster),
        explain=ExplainConfig(steps=0),
    )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, name=model))


def with_recipe(config: RunConfig) -> RunConfig:
    """The run with a key of each kind that is beside the network: clipped, averaged, smoothed, weighed, measured."""
    return dataclasses.replace(
        config,
        # Below the norms of the gradients: what is clipped shows.
        optimizer=dataclasses.replace(config.optimizer, clipnorm=0.2, ema=0.8),
        loss=LossConfig(label_smoothing=0.1),
        metrics=("top_3",),
        data=dataclasses.replace(config.data, class_weights="balanced"),
    )


def set_version(checkpoint: Path, version: int | None, *, without: tuple[str, ...] = ()) -> None:
    """Make a checkpoint what a rampline of that version would have written; `None` wrote no version.

    `without` are the fields of progress that it did not know.
    """
    file = checkpoint / "progress.json"
    content = json.loads(file.read_text())["content"]
    del content["version"]
    for name in without:
        del content["progress"][name]
    if version is not None:
        content["version"] = version
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    file.write_text(json.dumps({"checksum": hashlib.sha256(canonical.encode()).hexdigest(), "content": content}))
