"""A damaged checkpoint never loads: the one before is used, or what is loaded is what was written, to the bit.

Every case has a seed of its own, named in its id; run with `pytest -v` to see them.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import pytest
from checkpoints import load_checkpoint

from rampline.errors import ConfigError, RunFailed
from rampline.record.checkpoints import CheckpointDamaged, Progress, find_checkpoints, read_progress
from rampline.training.checkpoint import load_model_weights, restore_newest, save_checkpoint

FILES = ("variables.npz", "progress.json")
CASES = 8
Values = list[np.ndarray]


def make() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.BatchNormalization()])
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer


def values(model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Values:
    return [np.asarray(v.value).copy() for v in [*model.variables, *optimizer.variables]]


def equal(left: Values, right: Values) -> bool:
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[Path, dict[int, Values]]:
    """Two checkpoints of random values and progress, and what was written in each."""
    folder, expected = tmp_path_factory.mktemp("written"), {}
    model, optimizer = make()
    for step in (10, 20):
        chance = np.random.default_rng(step)
        for v in [*model.variables, *optimizer.variables]:
            v.assign((100 * chance.random(v.shape)).astype(v.dtype))
        sums = (float(chance.random()), 2.0, 3.0)
        progress = Progress(step=step, epoch_sums=sums, metrics={"val_loss": float(chance.random()), "lr": None})
        save_checkpoint(folder, progress, model, optimizer, replica_statistics=chance.random((2, 10)))
        load_checkpoint(folder / f"step-{step:08d}", model, optimizer)
        expected[step] = values(model, optimizer)
    return folder, expected


@pytest.fixture(scope="module")
def state() -> tuple[keras.Model, keras.optimizers.Optimizer]:
    return make()


@pytest.fixture
def folder(written, state, tmp_path) -> Path:
    """A copy of the two, to damage; the variables to restore into are all 7."""
    for v in [*state[0].variables, *state[1].variables]:
        v.assign(np.full(v.shape, 7, v.dtype))
    return Path(shutil.copytree(written[0], tmp_path / "checkpoints"))


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def flip(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(CASES), ids="seed {}".format)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [cut, flip])
def test_a_random_damage_never_loads(folder, written, state, damage, file, seed):
    before, last = find_checkpoints(folder)
    damage(last / file, random.Random(seed))
    warnings: list[str] = []
    restored = restore_newest(folder, *state, warn=warnings.append)
    assert restored is not None
    step = 10 if restored.path == before else 20
    assert equal(values(*state), written[1][step])
    original = written[0] / restored.path.name
    assert restored.progress == read_progress(original)
    with np.load(original / "variables.npz") as arrays:
        assert restored.replica_statistics is not None
        assert restored.replica_statistics.tobytes() == arrays["replica_statistics"].tobytes()
    if step == 20:
        assert file == "progress.json"  # a byte without meaning: no byte of the variables is without one
        assert (restored.damaged, warnings) == ((), [])
        return
    (warning,) = warnings
    assert warning.startswith(f"checkpoint {last} is damaged (")
    assert warning.endswith(f"): going on from {before}")
    assert restored.damaged == (last,)


def _replace_by_a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("a file")


def _empty(path: Path) -> None:
    for name in FILES:
        (path / name).unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "its variables missing": lambda path: (path / "variables.npz").unlink(),
    "its progress missing": lambda path: (path / "progress.json").unlink(),
    "an empty folder": _empty,
    "a file instead of a folder": _replace_by_a_file,
    "its variables empty": lambda path: os.truncate(path / "variables.npz", 0),
    "the variables of another": lambda path: shutil.copy(path.parent / "step-00000010" / "variables.npz", path),
    "the progress of another": lambda path: shutil.copy(path.parent / "step-00000010" / "progress.json", path),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_half_deleted_checkpoint_is_refused_by_name_and_left_out_with_one_warning(folder, written, state, damage):
    before, last = find_checkpoints(folder)
    damage(last)
    unchanged, warnings = values(*state), list[str]()
    for load in (lambda: load_checkpoint(last, *state), lambda: load_model_weights(last, state[0])):
        with pytest.raises(CheckpointDamaged) as failure:
            load()
        assert str(failure.value).startswith(f"checkpoint {last} is damaged: ")
        assert "\n" not in str(failure.value)
        assert isinstance(failure.value, ConfigError)
    assert equal(values(*state), unchanged)
    restored = restore_newest(folder, *state, warn=warnings.append)
    assert restored is not None
    assert (restored.path, restored.damaged) == (before, (last,))
    assert equal(values(*state), written[1][10])
    (warning,) = warnings
    assert warning.startswith(f"checkpoint {last} is damaged (")
    assert warning.endswith(f"): going on from {before}")


def test_a_folder_of_damaged_checkpoints_is_an_error_that_says_what_to_do(folder, state):
    for path in find_checkpoints(folder):
        (path / "variables.npz").unlink()
    unchanged = values(*state)
    with pytest.raises(RunFailed) as failure:
        restore_newest(folder, *state, warn=pytest.fail)
    reason = "step-00000020: variables.npz: No such file or directory"
    advice = "to start the run over, delete that folder"
    assert str(failure.value) == f"every checkpoint in {folder} is damaged ({reason}): {advice}"
    assert equal(values(*state), unchanged)


def test_several_damaged_ones_are_named_one_by_one(folder, state):
    before, last = find_checkpoints(folder)
    newer = Path(shutil.copytree(last, folder / "step-00000030"))
    for path in (last, newer):
        (path / "progress.json").unlink()
    warnings: list[str] = []
    restored = restore_newest(folder, *state, warn=warnings.append)
    assert restored is not None
    assert restored.damaged == (newer, last)
    reason = "progress.json: No such file or directory"
    assert warnings == [f"checkpoint {p} is damaged ({reason}): going on from {before}" for p in (newer, last)]
