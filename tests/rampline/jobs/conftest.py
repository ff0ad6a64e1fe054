"""Runs on a part of `digits`, whose processes must all be gone at the end, and disks that refuse to be written."""

import contextlib
import dataclasses
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from processes import processes_of

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.record.run_directory import RunDirectory, RunIdentity


@pytest.fixture
def make_run(digits: PreparedDataset, forks: None, tmp_path: Path) -> Iterator:
    """`make_run(config)` creates a run directory on a part of `digits`; processes it leaves behind fail the test."""
    made: list[RunDirectory] = []

    def make(config: RunConfig, *, folder: Path = tmp_path, **changes: object) -> RunDirectory:
        directory = RunDirectory(folder / f"run-{len(made)}")
        identity = RunIdentity(study="test", name="run", dataset=str(digits.directory))
        directory.create(dataclasses.replace(config, **changes), identity)  # type: ignore[arg-type]
        made.append(directory)
        return directory

    yield make
    for directory in made:
        assert processes_of(directory.path) == []


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """`mount(*ARGUMENTS, PATH)`; what was mounted is unmounted at the end."""
    mounted: list[str] = []

    def mount(*arguments: str) -> None:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mount is not permitted: {done.stderr.strip()}")
        mounted.append(arguments[-1])

    yield mount
    for path in reversed(mounted):
        subprocess.run(["umount", "--lazy", path], check=False)


@pytest.fixture
def read_only(mount: Callable[..., None]) -> Callable[[Path], AbstractContextManager[None]]:
    """`with read_only(folder)`: nothing can be written there."""

    @contextlib.contextmanager
    def make(folder: Path) -> Iterator[None]:
        mount("--bind", str(folder), str(folder))
        mount("-o", "remount,ro,bind", str(folder))
        yield
        mount("-o", "remount,rw,bind", str(folder))

    return make
