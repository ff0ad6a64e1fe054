"""Files and directories are complete or absent, also when the process is killed."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rampline.files import complete_directory, read_json, write_json, write_text

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
