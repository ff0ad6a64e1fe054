"""A copied run directory: what roles change in it comes back once, checkpoints complete."""

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rampline.jobs.mirror import COPY, NOT_COPIED, Change, Changes, apply, pack, replace_run


def told(look: Changes, home: Path, copy: Path) -> Iterator[Change]:
    """What it tells, as if the copy were at the same path as the run directory."""
    for change in look.read():
        yield dataclasses.replace(change, path=str(home / Path(change.path).relative_to(copy)))


def test_each_change_is_told_of_once_and_what_is_said_last(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    (home / "events.jsonl").write_text('{"event": "old"}\n')
    replace_run(pack(home, without=NOT_COPIED), copy)
    # A folder in a copy is no second one.
    look = Changes([copy, copy / "parity"], is_chiefs=True)
    (copy / "result.json").write_text("{}")
    (copy / "evaluation.json").write_text("{}")
    (copy / ".aside").touch()
    (copy / "logs").mkdir()
    with open(copy / "events.jsonl", "a") as events:
        events.write('{"event": "epoch"}\n{"half')
    (copy / "logs" / "worker-1.log").write_text("a line\n")
    (copy / "checkpoints" / "step-00000004").mkdir(parents=True)
    (copy / "checkpoints" / "step-00000004" / "progress.json").write_text("{}")
    changes = [*told(look, home, copy)]
    for change in changes:
        apply([home], change)
    names = [Path(change.path).name for change in changes]
    assert (changes[0].kind, names[0], names[-2:]) == ("whole", "step-00000004", ["events.jsonl", "result.json"])
    assert {*names[1:-2]} == {"evaluation.json", "worker-1.log"}
    assert (home / "events.jsonl").read_text() == '{"event": "old"}\n{"event": "epoch"}\n'
    assert (home / "logs" / "worker-1.log").read_text() == "a line\n"
    assert (home / "checkpoints" / "step-00000004" / "progress.json").read_text() == "{}"
    assert not look.read()


def make_copy(folder: Path) -> tuple[Path, Path]:
    """A run directory and its copy."""
    home, copy = folder / "home", folder / "copy"
    home.mkdir()
    replace_run(pack(home, without=NOT_COPIED), copy)
    return home, copy


def test_a_copy_replaces_nothing_but_a_copy(tmp_path: Path) -> None:
    home, copy = make_copy(tmp_path)
    (copy / "left").touch()
    replace_run(pack(home, without=NOT_COPIED), copy)
    assert not (copy / "left").exists()
    with pytest.raises(FileExistsError, match="home is there already, and is no copy"):
        replace_run(pack(copy, without=NOT_COPIED), home)
    assert not (home / COPY).exists()


def test_what_the_chief_says_of_a_stop_counts(tmp_path: Path) -> None:
    home, copy = make_copy(tmp_path)
    looks = [Changes([copy], is_chiefs=is_chiefs) for is_chiefs in (True, False)]
    (copy / "stop.json").write_text('{"saved": true}')
    of_chief, of_other = ([*told(look, home, copy)] for look in looks)
    (home / "stop.json").write_text('{"requested_by": "worker-1"}')
    for change in of_other:
        apply([home], change)
    assert (home / "stop.json").read_text() == '{"requested_by": "worker-1"}'
    for change in of_chief:
        apply([home], change)
    assert (home / "stop.json").read_text() == '{"saved": true}'


def test_a_file_that_takes_the_place_of_another_is_told_of_as_a_whole(tmp_path: Path) -> None:
    home, copy = make_copy(tmp_path)
    look = Changes([copy], is_chiefs=True)
    scalars = copy / "tensorboard" / "train" / "events.out.tfevents.1"
    scalars.parent.mkdir(parents=True)
    for text, is_other in (("epochs 1 to 3", False), ("epoch 1", True), ("epoch 1, epoch 2", False)):
        if is_other:
            scalars.with_name(".kept").write_text(text)
            scalars.with_name(".kept").replace(scalars)
        else:
            scalars.write_text(text)
        for change in told(look, home, copy):
            apply([home], change)
        assert (home / scalars.relative_to(copy)).read_text() == text
    assert len(list((home / "tensorboard" / "train").iterdir())) == 1


def test_a_node_changes_nothing_outside_of_the_run_directory(tmp_path: Path) -> None:
    home, _ = make_copy(tmp_path)
    with pytest.raises(ValueError, match="is not in"):
        apply([home], Change("replace", str(home / "../other"), b"x"))
    assert not (tmp_path / "other").exists()


def test_however_long_a_line_is_it_is_told_of(tmp_path: Path) -> None:
    """With `log_examples` an event has the numbers of all examples of a call."""
    home, copy = make_copy(tmp_path)
    look = Changes([copy], is_chiefs=True)
    line = f'{{"event": "steps", "examples": "{"7" * 2**23}"}}\n'
    (copy / "events.jsonl").write_text(line)
    (copy / "trace.pb").write_bytes(bytes(2**23))
    for change in told(look, home, copy):
        apply([home], change)
    assert (home / "events.jsonl").read_text() == line
    assert (home / "trace.pb").stat().st_size == 2**23


def test_what_is_taken_away_comes_back_no_more_but_nothing_goes_with_the_copy(tmp_path: Path) -> None:
    home, copy = tmp_path / "home", tmp_path / "copy"
    home.mkdir()
    for name in ("probing.json", "result.json", "config.json"):
        (home / name).write_text("{}")
    replace_run(pack(home, without=NOT_COPIED), copy)
    look = Changes([copy], is_chiefs=True)
    for name in ("probing.json", "result.json"):
        (copy / name).unlink()
    for change in told(look, home, copy):
        apply([home], change)
    assert [path.name for path in home.iterdir()] == ["config.json"]
    (copy / "probing.json").write_text("again")
    for change in told(look, home, copy):
        apply([home], change)
    assert (home / "probing.json").read_text() == "again"
    shutil.rmtree(copy)
    assert not look.read()
