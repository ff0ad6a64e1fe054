"""Two attempts at once: what comes back to life of the old one writes nothing anywhere."""

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from faults import assert_bit_equal
from folder_content import read_tree
from runs import make_config

from rampline.config import RunConfig
from rampline.files import THROUGH, complete_directory, remove, write_text
from rampline.jobs.exit_status import MACHINE_LOST
from rampline.jobs.fence import fence
from rampline.jobs.job import Job
from rampline.jobs.local import Local, LocalPlacement, LocalRole
from rampline.jobs.roles import role_counts
from rampline.jobs.supervisor import supervise
from rampline.jobs.tf_config import Task
from rampline.jobs.waiting import wait_until
from rampline.record.run_directory import RunDirectory


class FarRole(LocalRole):
    """A role whose machine falls silent: no signal reaches it, and nobody knows whether it runs."""

    is_silent = False

    @property
    def exit_status(self) -> int | None:
        return MACHINE_LOST if self.is_silent else super().exit_status

    def signal(self, number: signal.Signals) -> None:
        if not self.is_silent:
            super().signal(number)


@dataclass(frozen=True)
class FarPlacement(LocalPlacement):
    roles: list[FarRole] = field(default_factory=list)

    def start(self, task: Task, job: Job) -> LocalRole:
        self.roles.append(FarRole(**vars(super().start(task, job))))
        return self.roles[-1]


@dataclass(frozen=True)
class FarLauncher(Local):
    roles: list[FarRole] = field(default_factory=list)

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> FarPlacement:
        placed = super().place(config, workers=workers)
        return FarPlacement(placed.config, placed.tasks, self.roles)


@dataclass
class Revival:
    """Silences the first attempt after an epoch; revives it in the second one, which stands still meanwhile.

    Attributes:
        count: the roles of an attempt.
        wrote: files that the old attempt has changed.
    """

    directory: RunDirectory
    count: int
    launcher: FarLauncher = field(default_factory=FarLauncher)
    wrote: set[str] | None = None

    def hear(self, event: dict) -> None:
        old, new = self.launcher.roles[: self.count], self.launcher.roles[self.count :]
        if event["event"] == "epoch" and not new and not old[0].is_silent:
            stop(old)
            for role in old:
                role.is_silent = True
        if event["event"] == "epoch" and new and self.wrote is None:
            stop(new)
            before = read_tree(self.directory.path)
            go_on(old)
            assert wait_until(lambda: all(role.process.poll() is not None for role in old), 20)
            after = read_tree(self.directory.path)
            self.wrote = {name for name in {*before, *after} if before.get(name) != after.get(name)}
            go_on(new)


def stop(roles: Sequence[FarRole]) -> None:
    """A process that waits for a disk stands still only after that, and its other threads with it."""
    for role in roles:
        os.kill(role.process.pid, signal.SIGSTOP)
    for role in roles:
        process = psutil.Process(role.process.pid)
        assert wait_until(lambda process=process: process.status() == psutil.STATUS_STOPPED, 20)


def go_on(roles: Sequence[FarRole]) -> None:
    for role in roles:
        os.kill(role.process.pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.parametrize(
    "strategy, cluster", [("single", {}), ("parameter_server", {"workers": 1, "parameter_servers": 1})]
)
def test_an_attempt_that_is_over_writes_nothing(make_run, strategy: str, cluster: dict[str, int]) -> None:
    """The whole attempt comes back: the chief of a parameter-server run could train on with its old workers."""
    config = make_config(strategy, model="small_models:unhurried_with_all_state", **cluster)
    # Whichever worker is free takes a step: no log of examples there, and with one worker the steps have an order.
    config = dataclasses.replace(
        config, epochs=6, checkpoint_every_steps=1, steps_per_call=1, log_examples=strategy == "single"
    )
    whole, run = make_run(config), make_run(config)
    supervise(whole, on_event=lambda event: None, log=print)
    revival = Revival(run, count=sum(role_counts(config).values()))
    supervise(run, on_event=revival.hear, log=print, launcher=revival.launcher)
    assert revival.wrote == set()
    assert len(revival.launcher.roles) == 2 * revival.count
    assert_bit_equal(run, whole)
    assert not [path for path in run.path.iterdir() if ".attempt" in path.name]


def test_what_is_renamed_into_the_run_directory_or_away_needs_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "result.json").write_text("old")
    unfinished = complete_directory(tmp_path / "step-2")
    with fence(tmp_path, 1, logs=()) as environment, monkeypatch.context() as role:
        role.setenv(THROUGH, environment[THROUGH])
        unfinished.__enter__()
    before = read_tree(tmp_path)
    monkeypatch.setenv(THROUGH, environment[THROUGH])
    with pytest.raises(FileNotFoundError):
        unfinished.__exit__(None, None, None)
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "result.json", "new")
    with pytest.raises(FileNotFoundError):
        remove(tmp_path / "step-1")
    assert read_tree(tmp_path) == before


def test_a_checkpoint_that_a_killed_process_has_left_half_written_goes_as_the_next_attempt_begins(
    tmp_path: Path,
) -> None:
    left = tmp_path / "checkpoints" / ".step-00000004.0123abcd"
    whole = tmp_path / "checkpoints" / "step-00000004"
    for folder in (left, whole):
        folder.mkdir(parents=True)
    with fence(tmp_path, 1, logs=()):
        assert [*whole.parent.iterdir()] == [whole]
        left.mkdir()
    assert left.exists()  # the last change of a node may still be on its way


LEAVE = "from rampline.files import leave_if_over; leave_if_over(); print('stays')"


def test_a_disk_that_does_not_answer_for_a_moment_ends_no_role(tmp_path: Path) -> None:
    with fence(tmp_path, 1, logs=()) as environment:
        # As EIO, ESTALE and ETIMEDOUT of a network disk: an error that does not say whether the folder is there.
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        said = [leave(path) for path in (environment[THROUGH], str(loop / "attempt"))]
    file = tmp_path / "file"
    file.touch()
    said += [leave(path) for path in (environment[THROUGH], str(file), str(file / "below"))]
    assert said == ["stays", "stays", "", "", ""]


def leave(through: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LEAVE], env={**os.environ, THROUGH: through}, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()
