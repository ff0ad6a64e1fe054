"""Checkpoints on real disks: full, read-only, not ours; and what is kept."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_disk import mount, small_disk

from rampline.errors import RunFailed
from rampline.record.checkpoints import Progress, find_checkpoints
from rampline.training.checkpoint import read_checkpoint, write_checkpoint


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 4 MB."""
    with small_disk(tmp_path / "disk", 4) as path:
        yield path


def save(folder: Path, step: int, *, megabytes: float = 1.0, best_step: int = 10) -> Path:
    arrays = {"model/00000": np.full(int(megabytes * 1e6 / 8), step, np.float64)}
    progress = Progress(step=step, best_step=best_step)
    return write_checkpoint(folder, progress, arrays, ("dense/kernel",), keep=1)


def steps(folder: Path) -> list[int]:
    """Steps of the checkpoints of `folder`, each of them whole and with its own values; nothing else is there."""
    found = []
    for path in sorted(folder.iterdir()):
        progress, arrays = read_checkpoint(path)
        assert np.unique(arrays["model/00000"]).tolist() == [progress.step]
        found.append(progress.step)
    return found


@pytest.mark.parametrize("taken", ["whole", "a file", "an empty folder"])
def test_a_step_saved_again_takes_the_place_of_what_was_there(tmp_path, taken):
    path = tmp_path / "step-00000020"
    if taken == "whole":
        save(tmp_path, 20, megabytes=0.5)
    elif taken == "a file":
        path.write_text("a file")
    else:
        path.mkdir()
    assert save(tmp_path, 20, megabytes=0.01) == path
    assert steps(tmp_path) == [20]
    assert (path / "variables.npz").stat().st_size < 20_000


def test_a_full_disk_gets_room_from_what_is_kept_in_spare(disk):
    for step in (10, 20, 30):
        save(disk, step)
    assert steps(disk) == [10, 20, 30]
    assert shutil.disk_usage(disk).free < 1_300_000
    save(disk, 40, megabytes=1.3)
    assert steps(disk) == [10, 30, 40]


def test_a_full_disk_is_told_and_the_last_and_the_best_stay(disk):
    for step in (10, 20, 30):
        save(disk, step)
    with pytest.raises(RunFailed) as failure:
        save(disk, 40, megabytes=2.5)
    free = shutil.disk_usage(disk).free
    expected = f"No space left on device (2.5 MB needed, {free / 1e6:.1f} MB free)"
    assert str(failure.value) == f"checkpoint {disk}/step-00000040 cannot be written: {expected}"
    assert steps(disk) == [10, 30]


@pytest.mark.parametrize("left", [0, 64 * 4096])
def test_a_disk_that_others_have_filled_is_told_and_left_as_it_was(disk, left):
    save(disk / "checkpoints", 10)
    with (disk / "other").open("wb") as other:
        os.posix_fallocate(other.fileno(), 0, shutil.disk_usage(disk).free - left)
    assert shutil.disk_usage(disk).free == left
    with pytest.raises(RunFailed, match="No space left on device"):
        save(disk / "checkpoints", 20)
    assert steps(disk / "checkpoints") == [10]
    (disk / "other").unlink()
    save(disk / "checkpoints", 20)
    assert steps(disk / "checkpoints") == [10, 20]


def test_a_damaged_last_checkpoint_is_not_what_a_full_disk_leaves(disk):
    for step in (10, 20, 30):
        save(disk, step, best_step=0)
    save(disk, 30, best_step=0)
    (disk / "step-00000030" / "variables.npz").write_bytes(b"damaged")
    with pytest.raises(RunFailed):
        save(disk, 40, megabytes=3.5)
    assert steps(disk) == [20]


def test_a_disk_that_has_become_read_only_is_told(disk):
    save(disk, 10)
    mount("-o", "remount,ro", str(disk))
    try:
        with pytest.raises(RunFailed) as failure:
            save(disk, 20)
    finally:
        mount("-o", "remount,rw", str(disk))
    assert str(failure.value) == f"checkpoint {disk}/step-00000020 cannot be written: Read-only file system"
    assert steps(disk) == [10]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's rights need root")
def test_a_folder_of_somebody_else_is_told(tmp_path):
    folder = tmp_path / "checkpoints"
    save(folder, 10, megabytes=0.01)
    os.seteuid(65534)
    try:
        with pytest.raises(RunFailed) as failure:
            save(folder, 20, megabytes=0.01)
    finally:
        os.seteuid(0)
    assert str(failure.value) == f"checkpoint {folder}/step-00000020 cannot be written: Permission denied"
    assert [path.name for path in find_checkpoints(folder)] == ["step-00000010"]
