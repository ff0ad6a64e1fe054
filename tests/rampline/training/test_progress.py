"""Which checkpoints there are, and which is the last and the best."""

import dataclasses
import json

import pytest

from rampline.training.progress import Progress, best_checkpoint, last_checkpoint, list_checkpoints, read_progress


@pytest.fixture
def write(tmp_path):
    def write(step: int, best_step: int = 0):
        path = tmp_path / f"step-{step:08d}"
        path.mkdir()
        progress = Progress(step=step, best_step=best_step, epoch_sums=(1.5, 2.0, 3.0), metrics={"val_loss": None})
        (path / "progress.json").write_text(json.dumps({"progress": dataclasses.asdict(progress)}))
        return path

    return write


def test_without_checkpoints_there_is_no_last_and_no_best(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        assert list_checkpoints(folder) == []
        assert last_checkpoint(folder) is None
        assert best_checkpoint(folder) is None


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path, write):
    paths = {step: write(step, best_step=100) for step in (9, 1000, 100)}
    assert list_checkpoints(tmp_path) == [paths[9], paths[100], paths[1000]]
    assert last_checkpoint(tmp_path) == paths[1000]
    assert best_checkpoint(tmp_path) == paths[100]


@pytest.mark.parametrize("best_step", [0, 5])
def test_the_last_is_the_best_while_the_best_is_unknown_or_gone(tmp_path, write, best_step):
    path = write(12, best_step=best_step)
    assert best_checkpoint(tmp_path) == path


def test_folders_that_are_not_complete_are_left_out(tmp_path, write):
    path = write(12)
    (tmp_path / "step-00000099").mkdir()
    (tmp_path / ".step-00000098.abc").mkdir()
    (tmp_path / ".step-00000098.abc" / "progress.json").write_text("{}")
    assert list_checkpoints(tmp_path) == [path]
    assert last_checkpoint(tmp_path) == path


def test_progress_is_read_back(write):
    path = write(12, best_step=3)
    expected = Progress(step=12, best_step=3, epoch_sums=(1.5, 2.0, 3.0), metrics={"val_loss": None})
    assert read_progress(path) == expected
