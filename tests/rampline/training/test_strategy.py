"""What a role sets up of TensorFlow before it trains."""

import dataclasses
from pathlib import Path

import pytest
from runs import make_config

from rampline.config import ExplainConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory, RunIdentity


def test_deterministic_operations_train_the_same_and_their_input_is_still_timed(
    digits: PreparedDataset, forks: None, tmp_path: Path
) -> None:
    """TensorFlow refuses its own clock among them, and adds in another order than without, also on the CPU."""

    def train(name: str, config: RunConfig) -> list[dict[str, float]]:
        directory = RunDirectory(tmp_path / name)
        directory.create(config, RunIdentity(study="test", name=name, dataset=str(digits.directory)))
        supervise(directory, on_event=lambda event: None, log=print)
        return [event["metrics"] for event in directory.read_events("epoch")]

    shared = {"epochs": 2, "explain": ExplainConfig(steps=0)}
    config = make_config("single", model="small_models:among_deterministic_operations")
    deterministic = train("deterministic", dataclasses.replace(config, deterministic=True, **shared))
    plain = train("plain", dataclasses.replace(make_config("single", model="small_models:smooth"), **shared))
    for ours, theirs in zip(deterministic, plain, strict=True):
        assert ours["val_loss"] == pytest.approx(theirs["val_loss"], rel=1e-4)
        assert 0 < ours["input_wait_fraction"] < 0.9
