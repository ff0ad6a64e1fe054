"""Where the code comes from, and whether a process is still there."""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from other_user import closed

import rampline
from rampline.jobs.lock import hold
from rampline.jobs.waiting import wait_until
from rampline.record.provenance import git_commit, process_identity, process_is_gone, process_runs


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


HOLD = """
import sys
from pathlib import Path
from rampline.jobs.lock import hold
from rampline.record.provenance import process_identity, process_is_gone
with hold(Path(sys.argv[1])):
    print(process_identity(), flush=True)
    for line in sys.stdin:
        print(process_is_gone(line.strip(), Path(sys.argv[2])), flush=True)
"""
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
try:
    HAS_CONTAINERS = subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0
except OSError:
    HAS_CONTAINERS = False


def test_a_process_is_gone_when_it_is_and_not_when_another_machine_has_it(tmp_path):
    assert not process_is_gone(process_identity(), tmp_path)
    host, pid, started = process_identity().rsplit(":", 2)
    ticks, _, where = started.partition("-")
    assert process_is_gone(f"{host}:{pid}:{int(ticks) - 1}-{where}", tmp_path)  # an earlier one with the same number
    child = subprocess.Popen(["true"])
    child.wait()
    assert process_is_gone(f"{host}:{child.pid}:{started}", tmp_path)
    assert not process_is_gone(f"elsewhere:{child.pid}:{started}", tmp_path)
    assert not process_is_gone("", tmp_path)


def test_before_the_machine_was_started_is_gone_and_another_machine_of_that_name_is_not(tmp_path):
    host, pid, started = process_identity().rsplit(":", 2)
    before = f"{host}:{pid}:{started.partition('-')[0]}-another/1"
    assert not process_runs(before)
    assert not process_is_gone(before, tmp_path / "not-here")
    command = [sys.executable, "-c", HOLD, str(tmp_path), str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        assert not process_is_gone(before, tmp_path)
        assert not process_is_gone(before, tmp_path / "run")
    with hold(tmp_path):  # who continues an execution holds its lock, and is not who was before
        assert process_is_gone(before, tmp_path / "run")
    assert process_is_gone(before, tmp_path)
    assert process_is_gone(before, tmp_path / "run")


def test_of_what_another_user_has_closed_nothing_is_known(tmp_path):
    host, pid, started = process_identity().rsplit(":", 2)
    run = tmp_path / "execution" / "run"
    run.mkdir(parents=True)
    with hold(run.parent), closed(tmp_path):
        assert not process_is_gone(f"{host}:{pid}:{started.partition('-')[0]}-another/1", run)


@pytest.mark.skipif(not HAS_CONTAINERS, reason="needs root and unshare: a PID namespace is what a container has")
def test_a_process_in_another_container_of_the_same_host_name_is_gone_when_its_lock_is_free(tmp_path):
    """As with two workers of deployments/compose.yaml, and one that was made again."""
    folders = [str(tmp_path / name) for name in ("first", "second")]
    with contextlib.ExitStack() as stack:
        processes, identities = [], []
        for own, other in (folders, folders[::-1]):
            command = [*CONTAINER, sys.executable, "-c", HOLD, own, other]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            processes.append(stack.enter_context(subprocess.Popen(command, **pipes)))
            stack.callback(processes[-1].kill)
            identities.append(processes[-1].stdout.readline().strip())

        def is_gone_for_the_second() -> str:
            processes[1].stdin.write(f"{identities[0]}\n")
            processes[1].stdin.flush()
            return processes[1].stdout.readline()

        for folder, identity in zip(folders, identities, strict=True):
            assert not process_is_gone(identity, Path(folder))
            assert not process_runs(identity)
        assert is_gone_for_the_second() == "False\n"
        processes[0].kill()
        processes[0].wait()
        assert wait_until(lambda: process_is_gone(identities[0], Path(folders[0])), 10)
        assert is_gone_for_the_second() == "True\n"
        assert not process_is_gone(identities[1], Path(folders[1]))


def test_a_process_that_is_known_by_its_time_of_start_is_looked_for_by_that():
    host, pid, _ = process_identity().rsplit(":", 2)
    created = int(psutil.Process().create_time())
    assert not process_is_gone(f"{host}:{pid}:{created}", Path())
    assert process_is_gone(f"{host}:{pid}:{created - 1000}", Path())


def test_a_step_of_the_clock_makes_no_other_process(monkeypatch):
    before, create_time = process_identity(), psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: create_time(process) + 3600)
    assert process_identity() == before
    assert not process_is_gone(before, Path())
