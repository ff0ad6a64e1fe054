"""Small runs for tests: their configurations, and their roles as processes of a script."""

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rampline.config import BatchConfig, ClusterConfig, LearningRateConfig, OptimizerConfig, RunConfig
from rampline.jobs.tf_config import Task

SUPPORT = Path(__file__).parent
Steps = Callable[..., list[dict[str, np.ndarray]]]


def make_config(strategy: str, *, model: str = "convnet", batch: int = 28, **cluster: Any) -> RunConfig:
    """A run of that strategy on the `digits` fixture; 28 does not divide its training split.

    SGD with momentum: Adam divides gradients of 1e-9 by their own size, and turns the rounding of a sum into an update.
    """
    config = RunConfig(
        strategy=strategy,  # type: ignore[arg-type]  # it is checked
        batch=BatchConfig(size=batch, per="global"),
        steps_per_call=8,
        optimizer=OptimizerConfig(name="sgd"),
        learning_rate=LearningRateConfig(peak=0.02),
        cluster=ClusterConfig(**cluster),
    )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, name=model))


def set_version(checkpoint: Path, version: int | None) -> None:
    """Make a checkpoint what a rampline of that version would have written; `None` wrote no version."""
    file = checkpoint / "progress.json"
    content = json.loads(file.read_text())["content"]
    del content["version"]
    if version is not None:
        content["version"] = version
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    file.write_text(json.dumps({"checksum": hashlib.sha256(canonical.encode()).hexdigest(), "content": content}))


def role_environment() -> dict[str, str]:
    """Of processes that import models from `small_models`."""
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", str(SUPPORT))]
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": os.pathsep.join([str(SUPPORT), *others])}


def run_role_scripts(commands: Sequence[Sequence[str]], tasks: Sequence[Task]) -> None:
    """Run a Python script, with its arguments, for each task side by side to their end; every one must succeed."""
    processes = [
        subprocess.Popen(
            [sys.executable, *command],
            env={**role_environment(), "TF_CONFIG": task.to_json()},
            stderr=subprocess.PIPE,
            text=True,
        )
        for command, task in zip(commands, tasks, strict=True)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors[-2000:]
    finally:
        for process in processes:
            process.kill()
            process.wait()
