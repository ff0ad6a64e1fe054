"""Checkpoints of real models and optimizers: exact, checked, and of the model that they were written for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from checkpoints import load_checkpoint

from rampline.errors import ConfigError
from rampline.files import delete_unfinished
from rampline.record.checkpoints import CheckpointDamaged, Progress, list_checkpoints
from rampline.training.checkpoint import load_model_weights, restore_newest, save_checkpoint
from rampline.training.random_draws import seeds_of

PROGRESS = Progress(
    step=21,
    epoch=1,
    epoch_sums=(0.1, 2.0, 3.0, 0.5),
    elapsed_seconds=1.25,
    best_epoch=1,
    best_step=21,
    best_val_accuracy=0.9,
    metrics={"val_loss": 0.3},
)
# Saves checkpoint after checkpoint of a model of 4 MB, without end.
SAVING = """
import sys
from itertools import count
from pathlib import Path
import keras
from rampline.training.checkpoint import save_checkpoint
from rampline.record.checkpoints import Progress
model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)])
optimizer = keras.optimizers.SGD()
optimizer.build(model.trainable_variables)
for step in count(1):
    model.weights[0].assign(keras.ops.full((1000, 1000), step))
    save_checkpoint(Path(sys.argv[1]), Progress(step=step, best_step=1), model, optimizer, keep=0)
    print(step, flush=True)
"""


def make(
    units: int = 5, optimizer: str = "adam", steps: int = 2, dropouts: int = 1
) -> tuple[keras.Model, keras.optimizers.Optimizer]:
    """A small model with BatchNorm and Dropout, and its optimizer, after `steps` updates."""
    layers = [keras.layers.Dense(units), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(0.5) for _ in range(dropouts)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(3)])
    model.compile(optimizer=keras.optimizers.get(optimizer), loss="mse")
    model.optimizer.build(model.trainable_variables)
    for step in range(steps):
        model.train_on_batch(np.full((8, 4), step + 1.0), np.ones((8, 3)))
    return model, model.optimizer


def arrays_of(variables) -> list[np.ndarray]:
    return [np.asarray(v.value) for v in variables]


def values(*owners) -> list[np.ndarray]:
    return arrays_of(v for owner in owners for v in owner.variables)


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for left, right in zip(found, expected, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


@pytest.fixture
def saved(tmp_path) -> tuple[Path, keras.Model, keras.optimizers.Optimizer]:
    model, optimizer = make()
    return save_checkpoint(tmp_path, PROGRESS, model, optimizer), model, optimizer


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_every_variable_and_the_progress_come_back(tmp_path, name):
    keras.utils.set_random_seed(1)
    model, optimizer = make(optimizer=name)
    path = save_checkpoint(tmp_path, PROGRESS, model, optimizer)
    assert path.name == "step-00000021"
    keras.utils.set_random_seed(2)
    other, other_optimizer = make(optimizer=name, steps=0)
    assert not np.array_equal(values(other)[0], values(model)[0])
    assert load_checkpoint(path, other, other_optimizer) == PROGRESS
    assert_equal(values(other, other_optimizer), values(model, optimizer))
    assert int(other_optimizer.iterations) == 2


def test_loss_scaling_comes_back(tmp_path):
    model, _ = make(steps=0)
    scaled, other = (keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam()) for _ in range(2))
    for optimizer in (scaled, other):
        optimizer.build(model.trainable_variables)
    scaled.dynamic_scale.assign(512.0)
    path = save_checkpoint(tmp_path, PROGRESS, model, scaled)
    load_checkpoint(path, model, other)
    assert float(other.dynamic_scale) == 512.0


@pytest.mark.parametrize("dropouts", [0, 1, 2])
def test_a_fine_tune_takes_the_weights_alone(saved, dropouts):
    """It draws random numbers by its own seed, and its dropout may be another."""
    path, model, _ = saved
    other, optimizer = make(optimizer="sgd", steps=1, dropouts=dropouts)
    seeds, before = arrays_of(seeds_of(other)), values(optimizer)
    assert len(seeds) == dropouts
    load_model_weights(path, other)
    assert_equal(arrays_of(other.weights), arrays_of(model.weights))
    assert_equal(arrays_of(seeds_of(other)), seeds)
    assert_equal(values(optimizer), before)


@pytest.mark.parametrize("units, optimizer", [(6, "adam"), (5, "sgd")])
def test_another_model_or_optimizer_is_refused(saved, units, optimizer):
    model, other = make(units=units, optimizer=optimizer)
    before = values(model, other)
    for load in (load_checkpoint, lambda path, *parts: restore_newest(path.parent, *parts, warn=pytest.fail)):
        with pytest.raises(ConfigError) as failure:
            load(saved[0], model, other)
        assert not isinstance(failure.value, CheckpointDamaged)
        assert str(failure.value).startswith(f"checkpoint {saved[0]} does not fit this model: ")
    assert_equal(values(model, other), before)


@pytest.mark.long
def test_a_kill_while_saving_leaves_only_whole_checkpoints(tmp_path):
    model = keras.Sequential([keras.Input((1000,)), keras.layers.Dense(1000)])
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    command = [sys.executable, "-c", SAVING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        told = [process.stdout.readline() for _ in range(3)]
        os.kill(process.pid, signal.SIGKILL)
    assert told == ["1\n", "2\n", "3\n"]
    delete_unfinished(tmp_path, "step-*")
    checkpoints = list_checkpoints(tmp_path)
    assert sorted(tmp_path.iterdir()) == checkpoints
    assert checkpoints[0].name == "step-00000001"
    steps = [load_checkpoint(path, model, optimizer).step for path in checkpoints]
    assert steps[-1] >= 3
    for path, step in zip(checkpoints, steps, strict=True):
        load_model_weights(path, model)
        assert np.unique(values(model)[0]).tolist() == [step]
