"""Files and directories are complete or absent, also when the process is killed."""

import csv
import errno
import fcntl
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from rampline import files
from rampline.errors import InputError
from rampline.files import (
    JsonData,
    complete_directory,
    delete_unfinished,
    json_digest,
    locked,
    read_csv,
    read_json,
    remove,
    write_csv,
    write_json,
    write_text,
)

# Fills a directory half and then waits to be killed.
HALF_FILLED = """
import sys, time
from pathlib import Path
from rampline.files import complete_directory
with complete_directory(Path(sys.argv[1])) as aside:
    (aside / "half").write_text("half")
    print("half", flush=True)
    time.sleep(60)
"""
# Replaces one directory without end; its files hold the number of the round.
REPLACING = """
import sys
from itertools import count
from pathlib import Path
from rampline.files import complete_directory
for number in count():
    with complete_directory(Path(sys.argv[1]), replace=True) as aside:
        for name in "abcdef":
            (aside / name).write_text(str(number))
    print(number, flush=True)
"""
# Rewrites one file without end.
REWRITING = """
import sys
from itertools import count
from pathlib import Path
from rampline.files import write_json
for number in count():
    write_json(Path(sys.argv[1]), [number] * 5000)
    print(number, flush=True)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_text_replaces_the_old_one_and_leaves_nothing_beside(tmp_path):
    path = tmp_path / "deep" / "note.txt"
    write_text(path, "old")
    write_text(path, "new äöü\n")
    assert path.read_text() == "new äöü\n"
    assert names(path.parent) == ["note.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_table_holds_no_formula_and_is_read_as_it_was(tmp_path):
    formulas = ["=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''-x", "\uff1d1", "\uff20A"]
    plain = ["cat", "a\r=1", "a=b", "'quoted'", "-0.5", "+3", "-1e-07", ""]
    table = pd.DataFrame({"=name": formulas + plain, "figure": [-0.5] * 19, "many": [-3] * 19, "seen": [True] * 19})
    write_csv(tmp_path / "table.csv", table)
    with open(tmp_path / "table.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["'=name", "figure", "many", "seen"]
    assert [row[0] for row in rows] == [f"'{text}" for text in formulas] + plain
    assert {tuple(row[1:]) for row in rows} == {("-0.5", "-3", "True")}
    read = read_csv(tmp_path / "table.csv", dtype={"'=name": str}, keep_default_na=False)
    pd.testing.assert_frame_equal(read, table)


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    path = tmp_path / "value.json"
    write_json(path, {"a": [1, 2.5, None]})
    for wrong, error in (({"a": math.nan}, ValueError), ({"a": object()}, TypeError)):
        with pytest.raises(error):
            write_json(path, wrong)
    assert read_json(path) == {"a": [1, 2.5, None]}
    assert names(tmp_path) == ["value.json"]


def test_a_text_that_cannot_be_put_in_place_leaves_nothing_beside(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_text(tmp_path / "taken", "text")
    assert names(tmp_path) == ["taken"]


def test_a_directory_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "data"
    with complete_directory(target) as aside:
        (aside / "folder").mkdir()
        (aside / "folder" / "file").write_text("content")
        assert not target.exists()
        assert aside.parent == target.parent
    assert (target / "folder" / "file").read_text() == "content"
    assert names(target.parent) == ["data"]
    assert target.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_directory_that_fails_is_absent(tmp_path, error):
    def fill() -> None:
        with complete_directory(tmp_path / "data") as aside:
            (aside / "file").write_text("content")
            raise error

    with pytest.raises(error):
        fill()
    assert names(tmp_path) == []


def test_a_directory_that_has_appeared_meanwhile_is_kept(tmp_path):
    target = tmp_path / "data"
    with complete_directory(target) as aside:
        (aside / "file").write_text("slower")
        with complete_directory(target) as quicker:
            (quicker / "file").write_text("quicker")
    assert (target / "file").read_text() == "quicker"
    assert names(tmp_path) == ["data"]


def test_a_file_at_the_target_is_an_error_and_stays(tmp_path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(OSError), complete_directory(tmp_path / "data") as aside:
        (aside / "file").write_text("content")
    assert (tmp_path / "data").read_text() == "a file"
    assert names(tmp_path) == ["data"]


def kill_after(script: str, target: Path, lines: int) -> None:
    """Run `script` on `target`, and kill -9 it once it has told `lines` lines."""
    command = [sys.executable, "-c", script, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for _ in range(lines):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(timeout=30) == -signal.SIGKILL


def test_a_process_killed_inside_leaves_nothing_at_the_target(tmp_path):
    target = tmp_path / "data"
    kill_after(HALF_FILLED, target, lines=1)
    assert not target.exists()
    left = names(tmp_path)
    assert len(left) == 1
    assert left[0].startswith(".data.")
    with complete_directory(target) as aside:
        (aside / "whole").write_text("whole")
    assert names(target) == ["whole"]


@pytest.mark.parametrize("lines", [1, 7])
def test_a_process_killed_while_it_rewrites_leaves_a_whole_file(tmp_path, lines):
    path = tmp_path / "value.json"
    kill_after(REWRITING, path, lines)
    value = json.loads(path.read_text())
    assert len(value) == 5000
    assert len(set(value)) == 1
    assert value[0] >= lines - 1


@pytest.mark.parametrize("lines", [1, 5, 9])
def test_a_process_killed_while_it_replaces_leaves_a_whole_directory(tmp_path, lines):
    target = tmp_path / "data"
    kill_after(REPLACING, target, lines)
    delete_unfinished(tmp_path, "data")
    delete_unfinished(tmp_path, "data.*")
    assert names(tmp_path) == ["data"]
    assert names(target) == list("abcdef")
    (number,) = {(target / name).read_text() for name in "abcdef"}
    assert int(number) >= lines - 1


def test_the_old_directory_is_there_until_the_new_one_is(tmp_path):
    target = tmp_path / "data"
    target.mkdir()
    with subprocess.Popen([sys.executable, "-c", REPLACING, str(target)], stdout=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stdout.readline()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert os.path.isdir(target)
        process.kill()


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "by two renames"])
@pytest.mark.parametrize("taken", ["a directory", "a file", "a link", "nothing"])
def test_a_directory_takes_the_place_of_what_is_there(tmp_path, monkeypatch, taken, at_once):
    if not at_once:
        monkeypatch.setattr(files, "_swap", lambda one, other: False)
    target, linked = tmp_path / "data", tmp_path / "linked"
    linked.mkdir()
    if taken == "a directory":
        target.mkdir()
        (target / "old").write_text("old")
    elif taken == "a file":
        target.write_text("old")
    elif taken == "a link":
        target.symlink_to(linked)
    with complete_directory(target, replace=True) as aside:
        (aside / "new").write_text("new")
    assert names(target) == ["new"]
    assert not target.is_symlink()
    assert names(tmp_path) == ["data", "linked"]
    assert names(linked) == []


def test_a_replacement_that_fails_leaves_the_old_directory(tmp_path):
    target = tmp_path / "data"
    target.mkdir()

    def fill() -> None:
        with complete_directory(target, replace=True) as aside:
            (aside / "file").write_text("content")
            raise ValueError

    with pytest.raises(ValueError):
        fill()
    assert names(tmp_path) == ["data"]
    assert names(target) == []


def test_files_and_trees_are_removed_and_links_not_followed(tmp_path):
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "file").write_text("content")
    (tmp_path / "file").write_text("content")
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("tree", "file", "link"):
        remove(tmp_path / name)
    assert names(tmp_path) == ["kept"]
    with pytest.raises(FileNotFoundError):
        remove(tmp_path / "absent")


def test_what_a_killed_process_left_is_deleted_and_nothing_else(tmp_path):
    kill_after(HALF_FILLED, tmp_path / "step-1", lines=1)
    (tmp_path / "step-2").mkdir()
    (tmp_path / ".other-1.abc").mkdir()
    assert len(names(tmp_path)) == 3
    delete_unfinished(tmp_path, "step-*")
    assert names(tmp_path) == [".other-1.abc", "step-2"]


@pytest.fixture
def order(monkeypatch) -> list[tuple[str, Path]]:
    """What is synced and renamed, in order, while it really happens; by the names of that moment."""
    found: list[tuple[str, Path]] = []
    fsync, rename, replace, swap = os.fsync, os.rename, os.replace, files._swap

    def noting_fsync(descriptor: int) -> None:
        found.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def noting_swap(one: Path, other: Path) -> bool:
        is_done = swap(one, other)
        found.extend([("rename", other)] if is_done else [])
        return is_done

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(files, "_swap", noting_swap)
    for name, real in (("rename", rename), ("replace", replace)):
        monkeypatch.setattr(os, name, lambda old, new, real=real: (found.append(("rename", Path(new))), real(old, new)))
    return found


def test_a_text_is_synced_before_and_after_it_is_renamed(tmp_path, order):
    path = tmp_path / "new" / "note.txt"
    write_text(path, "text")
    (_, made), (what, aside), *rest = order
    assert (made, what, aside.parent) == (tmp_path, "sync", path.parent)
    assert aside.name.startswith(".note.txt.")
    assert rest == [("rename", path), ("sync", path.parent)]


@pytest.mark.parametrize("replace", [False, True])
def test_all_of_a_directory_is_synced_before_it_is_renamed(tmp_path, order, replace):
    target = tmp_path / "data"
    if replace:
        target.mkdir()
    with complete_directory(target, replace=replace) as aside:
        (aside / "deep").mkdir()
        (aside / "deep" / "file").write_text("content")
        (aside / "file").write_text("content")
    renamed = order.index(("rename", target))
    before = {path for what, path in order[:renamed] if what == "sync"}
    assert before == {aside, aside / "file", aside / "deep", aside / "deep" / "file"}
    assert order[renamed + 1] == ("sync", tmp_path)


@dataclass(frozen=True, kw_only=True)
class Reading:
    milliseconds: tuple[float, ...]
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Measured(JsonData):
    readings: tuple[Reading, ...]
    by_name: Mapping[str, Reading] = field(default_factory=dict)
    steps: int = 1


def test_a_dataclass_comes_back_from_json_with_all_that_is_in_it(tmp_path):
    one = Reading(milliseconds=(0.1, 2.0))
    measured = Measured(readings=(one, Reading(milliseconds=(), why="late")), by_name={"first": one}, steps=3)
    measured.write(tmp_path / "measured.json")
    assert Measured.read(tmp_path / "measured.json") == measured
    content = read_json(tmp_path / "measured.json")
    assert Measured.from_dict(content | {"of_a_newer_version": 1}) == measured
    assert Measured.from_dict({"readings": []}) == Measured(readings=())


@pytest.mark.parametrize("content", [[], {}, None, {"readings": 1}, {"readings": [{}]}, {"readings": [], "steps": "x"}])
def test_json_of_something_else_is_no_dataclass(content):
    with pytest.raises(ValueError, match="Measured"):
        Measured.from_dict(content)


def test_the_digest_of_a_value_never_changes():
    """By `sha256sum` of `{"a": [null, "\\u00e9"], "b": 1.0}`; prepared datasets are found by such digests."""
    digest = "851d60f466323251bb7c89a7300ac1609a784b62876b21f1ca3c691abebb0f97"
    assert json_digest({"b": 1.0, "a": [None, "é"]}) == json_digest({"a": (None, "é"), "b": 1.0}) == digest


def test_a_lock_that_is_held_is_waited_for_no_longer_than_asked(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "folder" / "lock"
    with locked(path) as first, locked(path, told.append, seconds=0.1) as second:
        assert (first, second) == (True, False)
        assert told == [path.read_text()] == [f"process {os.getpid()} on {socket.gethostname()}"]
    with locked(path, seconds=0.1) as third:
        assert third


def test_a_disk_without_locks_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(InputError, match=r"has no file locks .*: set RAMPLINE_HOME to a folder"),
        locked(tmp_path / "lock"),
    ):
        pass
