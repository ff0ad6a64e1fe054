"""Whole trainings with all that a recipe has: the same figures under every strategy, and the same bits when resumed."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from role_functions import RunRoles, assert_same_arrays, train_on, train_whole
from runs import make_config, with_recipe

from rampline.config import RunConfig
from rampline.record.checkpoints import best_checkpoint
from rampline.record.run_directory import RunDirectory
from rampline.training.checkpoint import group, load_model_weights, read_checkpoint
from rampline.training.models import make_model

TrainAlone = Callable[[str], list[dict[str, float]]]
# Of 120 examples 2 are left for the last batch.
BATCH = 59
SMOOTH, COMPILED = "small_models:smooth", "compiled_models:with_everything"
MIRRORED = {"strategy": "mirrored", "replicas": 3, "virtual_devices": 3}
CLUSTERS = [
    pytest.param(SMOOTH, "loop", MIRRORED, id="study, mirrored"),
    pytest.param(COMPILED, "loop", MIRRORED, id="compiled, mirrored"),
    pytest.param(COMPILED, "fit", MIRRORED, id="compiled, fit"),
    pytest.param(SMOOTH, "fit", MIRRORED, id="study, fit"),
    pytest.param(COMPILED, "loop", {"strategy": "multi_worker", "workers": 2}, id="compiled, workers"),
    pytest.param(SMOOTH, "loop", {"strategy": "multi_worker", "workers": 2, "sum": "exact"}, id="study, exact"),
    pytest.param(
        COMPILED,
        "loop",
        {"strategy": "parameter_server", "workers": 1, "parameter_servers": 1},
        id="compiled, servers",
    ),
]


def train_epochs(run_roles: RunRoles, config: RunConfig, path: Path) -> list[dict[str, float]]:
    """The metrics of the two epochs of a whole training."""
    run_roles(train_whole, dataclasses.replace(with_recipe(config), epochs=2), path)
    return [event["metrics"] for event in RunDirectory(path).read_events("epoch")]


@pytest.fixture(scope="module")
def train_alone(run_roles: RunRoles, tmp_path_factory: pytest.TempPathFactory) -> TrainAlone:
    """`train_alone(model)`: the metrics of one replica, which trains each model once."""

    @functools.cache
    def train(model: str) -> list[dict[str, float]]:
        config = make_config("single", model=model, batch=BATCH)
        return train_epochs(run_roles, config, tmp_path_factory.mktemp("one") / "run")

    return train


@pytest.mark.parametrize("model, engine, cluster", CLUSTERS)
@pytest.mark.long
def test_figures_are_those_of_one_replica(
    model: str, engine: str, cluster: dict, run_roles: RunRoles, train_alone: TrainAlone, tmp_path: Path
) -> None:
    one = train_alone(model)
    config = dataclasses.replace(make_config(model=model, batch=BATCH, **cluster), engine=engine)
    epochs = train_epochs(run_roles, config, tmp_path / "run")
    own = ["top_3"] if model == SMOOTH else ["top3", "f1", "margin"]
    figures = [
        "train_loss",
        "val_loss",
        "learning_rate",
        *(f"{split}_{name}" for name in own for split in ("train", "val")),
    ]
    assert len(epochs) == len(one) == 2
    for ours, theirs in zip(epochs, one, strict=True):
        assert {name: ours[name] for name in figures} == pytest.approx(
            {name: theirs[name] for name in figures}, rel=1e-4
        )
    assert epochs[1]["train_loss"] < epochs[0]["train_loss"]


@pytest.mark.long
def test_a_resumed_training_has_the_same_bits_and_its_checkpoints_the_averages(
    run_roles: RunRoles, tmp_path: Path
) -> None:
    config = with_recipe(make_config("mirrored", model="small_models:with_all_state", replicas=2, virtual_devices=2))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run_roles(train_on, config, whole, 6)
    run_roles(train_on, config, parts, 3)
    run_roles(train_on, config, parts, 6)
    arrays = [read_checkpoint(folder / "step-00000006")[1] for folder in (whole, parts)]
    assert_same_arrays(*arrays)
    checkpoint = best_checkpoint(parts)
    assert checkpoint is not None
    model = make_model(config.model, image_shape=(28, 28, 1), classes=10)
    load_model_weights(checkpoint, model)
    # The averages follow the weights, which stand among the variables of the optimizer.
    averages, kept = [v.numpy() for v in model.trainable_variables], group(arrays[1], "optimizer")
    weights = [[value for value in kept if value.shape == average.shape] for average in averages]
    for average, found in zip(averages, weights, strict=True):
        distances = sorted(float(np.abs(average - value).max()) for value in found)
        assert 0 < distances[0] < 0.1
