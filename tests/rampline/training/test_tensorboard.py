"""Event files hold every epoch once, also after a kill; a profile is what TensorBoard's plugin looks for."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tensorflow as tf
from small_disk import fill, small_disk
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rampline.training.tensorboard import ScalarWriter, profile

KILLED = """
import os, pathlib, signal, sys
from rampline.training.tensorboard import ScalarWriter
writer = ScalarWriter(pathlib.Path(sys.argv[1]), warn=print)
for epoch in range(1, 4):
    writer.write_epoch(epoch, {"train_loss": 1.0 / epoch, "val_loss": 2.0 / epoch})
os.kill(os.getpid(), signal.SIGKILL)
"""


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of every tag, as TensorBoard's own loader reads a folder."""
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()["tensors"]
    return {tag: [(e.step, float(tf.make_ndarray(e.tensor_proto))) for e in events.Tensors(tag)] for tag in tags}


def fail(message: str) -> None:
    pytest.fail(message)


def metrics(epoch: int, **changes: float | None) -> dict[str, float | None]:
    values = {"train_loss": 4.0 / epoch, "train_accuracy": 0.25 * epoch, "val_loss": 8.0, "val_accuracy": 0.5}
    return {**values, "learning_rate": 0.125, "images_per_second": 1000.0, "epoch_seconds": 3.0} | changes


def test_each_epoch_is_a_point_and_training_and_validation_are_runs_of_their_own(tmp_path):
    writer = ScalarWriter(tmp_path / "tensorboard", warn=fail)
    writer.write_epoch(1, metrics(1))
    first = read(tmp_path / "tensorboard" / "train")
    writer.write_epoch(2, metrics(2, val_accuracy=None, images_per_second=math.inf))

    assert first["epoch_loss"] == [(1, 4.0)]
    assert read(tmp_path / "tensorboard" / "train") == {
        "epoch_loss": [(1, 4.0), (2, 2.0)],
        "epoch_accuracy": [(1, 0.25), (2, 0.5)],
        "learning_rate": [(1, 0.125), (2, 0.125)],
        "images_per_second": [(1, 1000.0), (2, math.inf)],
    }
    assert read(tmp_path / "tensorboard" / "validation") == {
        "epoch_loss": [(1, 8.0), (2, 8.0)],
        "epoch_accuracy": [(1, 0.5)],
    }


@pytest.mark.long
def test_epochs_that_a_killed_run_trains_again_are_there_once_with_the_later_values(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [step for step, _ in read(tmp_path / "train")["epoch_loss"]] == [1, 2, 3]
    walls = wall_times(tmp_path / "train")
    time.sleep(1)  # event files are read by name, which has the second: a role takes longer to start again

    resumed = ScalarWriter(tmp_path, warn=fail)
    resumed.drop_from(2)
    assert read(tmp_path / "train")["epoch_loss"] == [(1, 1.0)]
    resumed.write_epoch(2, metrics(2, train_loss=20.0))
    resumed.write_epoch(3, metrics(3, train_loss=30.0))

    assert read(tmp_path / "train")["epoch_loss"] == [(1, 1.0), (2, 20.0), (3, 30.0)]
    assert read(tmp_path / "validation")["epoch_loss"] == [(1, 2.0), (2, 8.0), (3, 8.0)]
    assert wall_times(tmp_path / "train")[0] == walls[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "validation"]


def wall_times(folder: Path) -> list[float]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.wall_time for event in events.Tensors("epoch_loss")]


def test_a_point_that_was_cut_short_is_dropped_and_the_ones_before_it_stay(tmp_path):
    writer = ScalarWriter(tmp_path, warn=fail)
    writer.write_epoch(1, {"train_loss": 1.0})
    writer.write_epoch(2, {"train_loss": 2.0})
    (file,) = (tmp_path / "train").iterdir()
    os.truncate(file, file.stat().st_size - 5)
    resumed = ScalarWriter(tmp_path, warn=fail)
    resumed.drop_from(3)
    assert read(tmp_path / "train")["epoch_loss"] == [(1, 1.0)]
    resumed.write_epoch(3, {"train_loss": 3.0})
    assert read(tmp_path / "train")["epoch_loss"] == [(1, 1.0), (3, 3.0)]


def test_a_full_disk_is_told_once_and_ends_nothing(tmp_path):
    warnings: list[str] = []
    with small_disk(tmp_path / "disk", megabytes=1) as disk:
        writer = ScalarWriter(disk / "tensorboard", warn=warnings.append)
        writer.write_epoch(1, metrics(1))
        fill(disk)
        for epoch in range(2, 400):
            writer.write_epoch(epoch, metrics(epoch))
    (warning,) = warnings
    assert warning.startswith("TensorBoard scalars are not written from epoch ")
    assert warning.endswith("No space left on device")
    assert "function_node" not in warning


def test_a_profile_holds_the_steps_of_the_block(tmp_path):
    matrix = tf.random.normal((64, 64))
    product = tf.function(lambda: tf.linalg.matmul(matrix, matrix))
    product()
    with profile(tmp_path / "profile", warn=fail) as mark_step:
        for number in range(7, 10):
            with mark_step(number):
                product()
    (file,) = tmp_path.glob("profile/plugins/profile/*/*.xplane.pb")
    content = file.read_bytes()
    assert len(content) > 1000
    assert b"MatMul" in content
    assert b"step_num" in content


def test_a_block_that_fails_leaves_no_profile_and_the_next_one_can_be_taken(tmp_path):
    with pytest.raises(ZeroDivisionError), profile(tmp_path / "one", warn=fail):
        raise ZeroDivisionError
    assert not list(tmp_path.rglob("*.pb"))
    with profile(tmp_path / "two", warn=fail):
        tf.ones(3)
    assert len(list(tmp_path.rglob("*.pb"))) == 1


def test_a_profile_that_cannot_be_written_or_taken_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    warnings: list[str] = []
    with profile(tmp_path / "file" / "profile", warn=warnings.append):
        tf.ones(3)
    with profile(tmp_path / "outer", warn=fail), profile(tmp_path / "inner", warn=warnings.append):
        tf.ones(3)
    assert len(warnings) == 2
    assert warnings[0] == f"the profile was not written: {tmp_path}/file is not a directory"
    assert warnings[1].startswith("no profile was taken: ")
    assert len(list((tmp_path / "outer").rglob("*.xplane.pb"))) == 1
