"""Which checkpoints there are, which is the last and the best; what they say of a training is verified."""

import hashlib
import json
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from runs import set_version

from rampline.errors import ConfigError
from rampline.record.checkpoints import (
    VERSION,
    CheckpointDamaged,
    Manifest,
    Progress,
    best_checkpoint,
    last_checkpoint,
    list_checkpoints,
    read_manifest,
    read_progress,
    surplus_checkpoints,
    write_manifest,
)

MODEL_VARIABLES = ("dense/kernel", "dense/bias")


@pytest.fixture
def write(tmp_path):
    def write(step: int, best_step: int = 0) -> Path:
        path = tmp_path / f"step-{step:08d}"
        path.mkdir()
        sums = (1.5, 2.0, 3.0, 4.0)
        progress = Progress(step=step, best_step=best_step, epoch_sums=sums, metrics={"val_loss": None, "lr": 1e-3})
        manifest = Manifest(variables_sha256="ab" * 32, progress=progress, model_variables=MODEL_VARIABLES)
        write_manifest(path, manifest)
        return path

    return write


def test_without_checkpoints_there_is_no_last_and_no_best(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        assert list_checkpoints(folder) == []
        assert last_checkpoint(folder) is None
        assert best_checkpoint(folder) is None


def test_checkpoints_are_in_the_order_of_their_steps(tmp_path, write):
    paths = {step: write(step, best_step=100) for step in (9, 99_999_999, 100_000_000, 100)}
    assert list_checkpoints(tmp_path) == [paths[9], paths[100], paths[99_999_999], paths[100_000_000]]
    assert last_checkpoint(tmp_path) == paths[100_000_000]
    assert best_checkpoint(tmp_path) == paths[100]


def test_the_last_does_not_take_the_place_of_a_best_that_is_gone(tmp_path, write):
    write(12, best_step=5)
    with pytest.raises(ConfigError, match=r"best checkpoint of the run, .*step-00000005 \(epoch 0\), is missing"):
        best_checkpoint(tmp_path)


def test_the_last_is_the_best_while_no_other_than_that_before_the_first_step_is_known(tmp_path, write):
    write(0)
    path = write(12)
    assert best_checkpoint(tmp_path) == path


def test_folders_that_are_not_complete_are_left_out(tmp_path, write):
    path = write(12)
    (tmp_path / "step-00000099").mkdir()
    (tmp_path / "step-00000100").write_text("a file")
    (tmp_path / "step-notes").mkdir()
    shutil.copytree(path, tmp_path / ".step-00000098.abc")
    assert list_checkpoints(tmp_path) == [path]
    assert last_checkpoint(tmp_path) == path


def test_the_best_survives_a_damaged_newest_checkpoint(tmp_path, write):
    best, middle, last = write(10, best_step=10), write(20, best_step=10), write(30, best_step=30)
    (last / "progress.json").write_text("{")
    assert best_checkpoint(tmp_path) == best
    shutil.rmtree(best)
    with pytest.raises(ConfigError, match=rf"{best.name} .*is missing"):
        best_checkpoint(tmp_path)
    shutil.rmtree(middle)
    assert best_checkpoint(tmp_path) == last  # whose loading then says what is wrong with it


@pytest.mark.parametrize(
    "keep, kept", [(0, {10, 50}), (1, {10, 40, 50}), (2, {10, 30, 40, 50}), (9, set(range(0, 60, 10)))]
)
def test_all_but_the_last_the_best_and_some_more_are_surplus(tmp_path, write, keep, kept):
    paths = {step: write(step, best_step=10) for step in range(0, 60, 10)}
    surplus = surplus_checkpoints(paths[50], keep)
    assert set(paths.values()) - set(surplus) == {paths[step] for step in kept}


def test_damaged_checkpoints_do_not_count_as_kept_but_the_best_stays(tmp_path, write):
    paths = {step: write(step, best_step=10) for step in range(10, 80, 10)}
    for step in (10, 50):
        (paths[step] / "progress.json").write_text("{}")
    (paths[40] / "progress.json").unlink()
    surplus = surplus_checkpoints(paths[60], keep=1)
    assert set(paths.values()) - set(surplus) == {paths[step] for step in (10, 30, 60)}


def test_progress_is_read_back(write):
    path = write(12, best_step=3)
    metrics = {"val_loss": None, "lr": 1e-3}
    assert read_progress(path) == Progress(step=12, best_step=3, epoch_sums=(1.5, 2.0, 3.0, 4.0), metrics=metrics)
    manifest = read_manifest(path)
    assert manifest.model_variables == MODEL_VARIABLES
    assert manifest.variables_sha256 == "ab" * 32
    content = json.loads((path / "progress.json").read_text())
    assert set(content) == {"checksum", "content"}
    assert content["content"]["version"] == VERSION


def test_progress_without_a_version_is_read(write):
    path = write(12, best_step=3)
    expected = read_manifest(path)
    set_version(path, None)
    assert read_manifest(path) == expected


def test_a_newer_version_is_refused_and_no_older_checkpoint_takes_its_place(tmp_path, write):
    write(10, best_step=10)
    newer, last = write(20, best_step=10), write(30)
    set_version(newer, VERSION + 1)
    set_version(last, VERSION + 1)
    versions = f"(version {VERSION + 1}); this one reads {VERSION}"
    reason = f"progress.json was written by a newer rampline {versions}: upgrade"
    with pytest.raises(ConfigError) as failure:
        best_checkpoint(tmp_path)
    assert str(failure.value) == f"{last}/{reason}"
    set_version(last, VERSION)
    with pytest.raises(ConfigError) as failure:
        surplus_checkpoints(last, 1)
    assert str(failure.value) == f"{newer}/{reason}"
    assert not isinstance(failure.value, CheckpointDamaged)


def test_sums_of_a_version_that_counted_no_penalties_are_read(tmp_path):
    progress = Progress(step=12, epoch_sums=(1.5, 2.0, 3.0))
    manifest = Manifest(variables_sha256="ab" * 32, progress=progress, model_variables=MODEL_VARIABLES)
    write_manifest(tmp_path, manifest)
    assert read_progress(tmp_path).epoch_sums == (1.5, 2.0, 3.0, 0.0)


def test_progress_of_a_version_that_knew_no_best_loss_is_read(write):
    path = write(12, best_step=3)
    expected = read_manifest(path)
    set_version(path, 1, without=("best_loss_epoch", "best_val_loss"))
    assert read_manifest(path) == expected


def test_no_flipped_bit_gives_other_numbers(write):
    path = write(12, best_step=3)
    file, expected = path / "progress.json", read_manifest(path)
    content = file.read_bytes()
    found, bits = 0, range(0, 8 * len(content), 3)
    for bit in bits:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(flipped)
        with suppress(CheckpointDamaged):
            assert read_manifest(path) == expected
            continue
        found += 1
    assert found > 0.9 * len(bits)


@pytest.mark.parametrize("seed", range(5), ids="seed {}".format)
def test_no_cut_or_overwritten_block_gives_other_numbers(write, seed):
    path, chance = write(12, best_step=3), random.Random(seed)
    file = path / "progress.json"
    content = file.read_bytes()
    for _ in range(40):
        start = chance.randrange(len(content) - 1)
        block = chance.randbytes(chance.randrange(1, 30))
        for damaged in (content[:start], content[:start] + block + content[start + len(block) :]):
            file.write_bytes(damaged)
            with pytest.raises(CheckpointDamaged) as failure:
                read_manifest(path)
            assert str(failure.value).startswith(f"checkpoint {path} is damaged: progress.json ")
            assert "\n" not in str(failure.value)


OTHERS = {
    "another version": {"progress": {"step": 3}, "model_variables": []},
    "a list": [],
    "null": None,
    "a part missing": {"variables_sha256": "ab", "model_variables": []},
    "a list as progress": {"variables_sha256": "ab", "model_variables": [], "progress": []},
}


@pytest.mark.parametrize("content", OTHERS.values(), ids=OTHERS)
def test_a_right_checksum_over_something_else_is_refused(write, content):
    path = write(12)
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(canonical.encode()).hexdigest()
    (path / "progress.json").write_text(json.dumps({"checksum": checksum, "content": content}))
    with pytest.raises(CheckpointDamaged, match="was written by another version") as failure:
        read_progress(path)
    assert "\n" not in str(failure.value)


def test_a_file_without_checksum_is_refused(write):
    path = write(12)
    (path / "progress.json").write_text(json.dumps({"progress": {"step": 12}, "sha256": "ab"}))
    with pytest.raises(CheckpointDamaged) as failure:
        read_progress(path)
    assert str(failure.value) == f"checkpoint {path} is damaged: progress.json has no checksum"
