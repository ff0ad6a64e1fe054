"""Where the code comes from, and whether a process is still there."""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil

import rampline
from rampline.record.provenance import git_commit, process_identity, process_is_gone


def test_the_commit_is_that_of_the_checkout():
    checkout = Path(rampline.__file__).parents[1]
    head = subprocess.run(["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True)
    expected = head.stdout.strip() if (checkout / ".git").exists() else "unknown"
    assert git_commit() == expected


def test_a_package_inside_a_foreign_checkout_has_no_commit(tmp_path):
    package = tmp_path / "venv" / "rampline"
    shutil.copytree(Path(rampline.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "theirs"]):
        subprocess.run([*git, *arguments], check=True)
    code = "from rampline.record.provenance import git_commit; print(git_commit())"
    done = subprocess.run([sys.executable, "-c", code], cwd=package.parent, capture_output=True, text=True)
    assert done.stdout == "unknown\n"


def test_a_process_is_gone_when_it_is_and_not_when_another_machine_has_it():
    assert not process_is_gone(process_identity())
    host, pid, started = process_identity().rsplit(":", 2)
    ticks, _, boot = started.partition("-")
    assert process_is_gone(f"{host}:{pid}:{int(ticks) - 1}-{boot}")  # an earlier one with the same number
    assert process_is_gone(f"{host}:{pid}:{ticks}-another")  # before the machine was started again
    child = subprocess.Popen(["true"])
    child.wait()
    assert process_is_gone(f"{host}:{child.pid}:{started}")
    assert not process_is_gone(f"elsewhere:{child.pid}:{started}")
    assert not process_is_gone("")


def test_a_process_that_is_known_by_its_time_of_start_is_looked_for_by_that():
    host, pid, _ = process_identity().rsplit(":", 2)
    created = int(psutil.Process().create_time())
    assert not process_is_gone(f"{host}:{pid}:{created}")
    assert process_is_gone(f"{host}:{pid}:{created - 1000}")


def test_a_step_of_the_clock_makes_no_other_process(monkeypatch):
    before, create_time = process_identity(), psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: create_time(process) + 3600)
    assert process_identity() == before
    assert not process_is_gone(before)
