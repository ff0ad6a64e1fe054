"""Runs on a part of `digits`: a few steps of any strategy in this process, or directories for whole runs; GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from processes import processes_of
from runs import MakeRun

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.record.run_directory import RunDirectory, RunIdentity

if TYPE_CHECKING:
    from role_functions import RunRoles


@pytest.fixture(scope="session")
def run_roles(digits: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> RunRoles:
    """`run_roles(function, config, ...)`: what that function of `role_functions` returns in each role that trains."""
    import role_functions

    def run(
        function: role_functions.Function, config: RunConfig, *arguments: object, workers: int | None = None
    ) -> list[role_functions.Arrays]:
        folder = tmp_path_factory.mktemp(function.__name__)
        return role_functions.run_roles(function, config, digits, folder, *arguments, workers=workers)

    return run


@pytest.fixture
def make_run(digits: PreparedDataset, forks: None, tmp_path: Path) -> Iterator[MakeRun]:
    """`make_run(config, **changes)` creates a run directory; processes that its run leaves behind fail the test."""
    made: list[RunDirectory] = []

    def make(
        config: RunConfig, *, folder: Path = tmp_path, dataset: Path = digits.directory, **changes: object
    ) -> RunDirectory:
        directory = RunDirectory(folder / f"run-{len(made)}")
        identity = RunIdentity(study="test", name="run", dataset=str(dataset))
        directory.create(dataclasses.replace(config, **changes), identity)  # type: ignore[arg-type]
        made.append(directory)
        return directory

    yield make
    for directory in made:
        assert processes_of(directory.path) == []


@pytest.fixture
def four_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's files as they lie on a machine with four GPUs."""
    for number in range(4):
        folder = tmp_path / "driver" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 11\n")
    monkeypatch.setattr("rampline.devices.NVIDIA_DRIVER", tmp_path / "driver")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
