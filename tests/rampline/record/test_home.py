"""Where things are kept."""

import os
from pathlib import Path

import pytest
from other_user import NOBODY

from rampline.errors import InputError
from rampline.files import write_text
from rampline.record.home import Home, keep_private


def test_the_home_is_what_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAMPLINE_HOME", "kept")
    home = Home.from_environment()
    assert home.root == tmp_path / "kept"
    folders = (home.data, home.runs, home.reports, home.tracking_database, home.artifacts)
    assert [path.name for path in folders] == ["data", "runs", "reports", "mlflow.db", "mlartifacts"]
    assert not home.root.exists()


def test_the_home_is_in_the_current_folder_otherwise(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAMPLINE_HOME", raising=False)
    assert Home.from_environment().root == Path(tmp_path / ".rampline")
    monkeypatch.setenv("RAMPLINE_HOME", "")
    assert Home.from_environment().root == Path(tmp_path / ".rampline")


@pytest.mark.parametrize(
    ("mode", "folder", "file"), [(None, 0o700, 0o600), (0o755, 0o700, 0o600), (0o775, 0o770, 0o660)]
)
def test_files_are_for_the_user_alone_unless_the_group_may_write_to_the_home(tmp_path, mode, folder, file):
    home = Home(root=tmp_path / "home")
    if mode is not None:
        home.root.mkdir()
        home.root.chmod(mode)
    before = os.umask(0o002)
    try:
        keep_private(home)
        write_text(home.root / "runs" / "config.json", "{}")
    finally:
        os.umask(before)
    assert home.runs.stat().st_mode & 0o777 == folder
    assert (home.runs / "config.json").stat().st_mode & 0o777 == file


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
def test_a_home_of_another_user_is_used_only_where_it_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAMPLINE_HOME", raising=False)
    home, umask = Home.from_environment(), os.umask(0o022)

    def is_refused() -> bool:
        try:
            keep_private(home)
        except InputError:
            return True
        return False

    try:
        assert not is_refused()
        home.root.mkdir()
        home.root.chmod(0o777)
        assert not is_refused()  # ours: some mounts let all write
        os.chown(home.root, NOBODY, NOBODY)
        assert is_refused()
        home.root.rename("theirs")
        home.root.symlink_to("theirs")
        assert is_refused()
        os.chown("theirs", 0, 0)
        assert not is_refused()
        os.chown(home.root, NOBODY, NOBODY, follow_symlinks=False)
        assert is_refused()
        monkeypatch.setenv("RAMPLINE_HOME", str(home.root))
        assert not is_refused()
        monkeypatch.setenv("RAMPLINE_HOME", "")
        home.root.unlink()
        home.root.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: NOBODY)
        assert not is_refused()
        home.root.chmod(0o777)
        assert is_refused()
    finally:
        os.umask(umask)


def test_a_tilde_is_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for given, home in (("~/kept", tmp_path / "kept"), ("~", tmp_path)):
        monkeypatch.setenv("RAMPLINE_HOME", given)
        assert Home.from_environment().root == home
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAMPLINE_HOME", "~no-such-user/kept")
    assert Home.from_environment().root == tmp_path / "~no-such-user/kept"


def test_an_execution_is_in_the_home_whose_runs_it_lies_in_also_through_a_link(tmp_path):
    home, disk = Home(root=tmp_path / "home"), tmp_path / "disk" / "runs"
    disk.mkdir(parents=True)
    home.root.mkdir()
    home.runs.symlink_to(disk)
    for folder in (home.runs / "digits" / "first", disk / "digits" / "first"):
        assert Home.of(folder, home.root) == home
    moved, elsewhere = tmp_path / "moved", tmp_path / "elsewhere"
    assert Home.of(moved / "runs" / "digits" / "first", home.root) == Home(root=moved)
    assert Home.of(elsewhere / "first", home.root) == home


def test_an_execution_of_a_copied_home_is_in_the_copy_though_both_have_their_runs_by_a_link(monkeypatch, tmp_path):
    disk, homes = tmp_path / "disk", [Home(root=tmp_path / name) for name in ("home", "copy")]
    disk.mkdir()
    for home in homes:
        home.root.mkdir()
        home.runs.symlink_to(disk)
    for home in homes:
        monkeypatch.setenv("RAMPLINE_HOME", str(home.root))
        assert Home.of(home.runs / "digits" / "first", homes[0].root) == home
