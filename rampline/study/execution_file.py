"""An execution of a study: an object that is opened once and passed on, and its file `execution.json`."""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rampline.config import DataConfig, RunConfig
from rampline.errors import DatasetError, InputError
from rampline.files import read_json, refuse_newer, write_json
from rampline.record.checkpoints import best_checkpoint
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.study.definition import Study, StudyRun

if TYPE_CHECKING:
    from rampline.comparison.runs import Comparison
    from rampline.data.dataset import PreparedDataset

FILE = "execution.json"
VERSION = 2
# How `write` begins the file.
_HEAD = re.compile(rb'\{\s*"version": \d+,\s*"began": ([\d.]+)')


@dataclass(kw_only=True)
class Execution:
    """An execution of a study: the folder `runs/STUDY/EXECUTION` with a run directory per run, and a run in MLflow.

    `execution.json` keeps what it was started with, so that it is continued as it was.

    Attributes:
        folder: where it lies, or will once it has begun.
        study: as it was checked.
        home: where it is kept.
        parent_run_id: its MLflow run; empty until it has begun.
        comparison: of its runs, once this process has made it.
        tell_store: logs what there is to say of the object store, where there is one; raises `TakenOver`.
    """

    folder: Path
    study: Study
    home: Home
    parent_run_id: str = ""
    comparison: Comparison | None = field(default=None, compare=False)
    tell_store: Callable[[Callable[[str], None]], None] = field(default=lambda log: None, compare=False)

    @classmethod
    def open(cls, folder: Path) -> Execution:
        """The execution that was begun in a folder.

        Raises:
            InputError: when the folder holds no execution, or that of a newer rampline.
        """
        if not is_begun(folder):
            raise InputError(f"{folder} is no execution: it has no {FILE}")
        content = read_json(folder / FILE)
        refuse_newer(folder / FILE, content, version=VERSION)
        study = Study(**content["study"])
        home = Home.of(folder, Path(content["home"]))
        study = dataclasses.replace(study, datasets=_datasets(folder, study.runs, prepared_names(content), home))
        return cls(folder=folder, study=study, home=home, parent_run_id=content["parent_run_id"])

    @classmethod
    def latest(cls, study: str, home: Home) -> Execution | None:
        """The newest execution of a study in `home`, finished or not."""
        found = find_executions(home, study)
        return cls.open(found[0]) if found else None

    def write(self, *, began: float | None = None) -> None:
        """Write `execution.json`: the execution has begun, on what is prepared of its data.

        Args:
            began: Unix seconds of its begin, which stay; now by default.
        """
        study = dataclasses.asdict(dataclasses.replace(self.study, datasets={}))
        del study["datasets"]
        prepared = {run.name: self.study.datasets.get(run.config.data) for run in self.study.runs}
        names = {run: dataset.directory.name for run, dataset in prepared.items() if dataset}
        content = {"study": study, "home": str(self.home.root), "parent_run_id": self.parent_run_id, "datasets": names}
        if self.is_begun:
            began = began_at(self.folder)
        began = time.time() if began is None else began
        write_json(self.folder / FILE, {"version": VERSION, "began": began, **content})

    @property
    def name(self) -> str:
        """Its name, which begins with the time."""
        return self.folder.name

    @property
    def is_begun(self) -> bool:
        """Whether it has a file, so that it can be continued: its data is prepared before that."""
        return is_begun(self.folder)

    @property
    def reports(self) -> Path:
        """Folder of its comparison: `report.html` and `comparison.csv`."""
        return self.home.reports / self.study.name / self.name

    def directory(self, run: str) -> RunDirectory:
        """The directory of a run."""
        return RunDirectory(self.folder / run)


def _datasets(
    folder: Path, runs: Sequence[StudyRun], names: Mapping[str, str], home: Home
) -> dict[DataConfig, PreparedDataset]:
    """What runs have begun with, or are to, as far as it is whole: their sources may be gone, or have changed since."""
    from rampline.data.dataset import PreparedDataset  # NumPy, which a new execution does without here

    directories = {run.config.data: home.data / names[run.name] for run in runs if run.name in names}
    for run in runs:
        directory = RunDirectory(folder / run.name)
        if directory.identity_file.is_file():
            directories[run.config.data] = Path(directory.read_identity().dataset)
    found: dict[DataConfig, PreparedDataset] = {}
    for data, prepared in directories.items():
        with suppress(DatasetError):
            found[data] = PreparedDataset.open(prepared)
    return found


def prepared_names(content: Mapping[str, Any]) -> dict[str, str]:
    """By run, the folders in `RAMPLINE_HOME/data` that `execution.json` names; none of one by an earlier version."""
    # A name and nothing else: a file from a store must not lead out of the home.
    return {run: Path(name).name for run, name in content.get("datasets", {}).items()}


def is_begun(folder: Path) -> bool:
    """Whether the folder holds an execution."""
    return (folder / FILE).is_file()


def find_executions(home: Home, study: str = "*") -> list[Path]:
    """Folders of a study's executions, or of all, whatever they are called; the one that began last comes first.

    What `rampline explain --measure`, `parity` and `tune` train beside them is none: it has no such file.
    """
    return sorted((file.parent for file in home.runs.glob(f"{study}/*/{FILE}")), key=began_at, reverse=True)


def began_at(folder: Path) -> float:
    """When an execution began, in Unix seconds; of one by an earlier version the time of its file.

    Only the head of the file is read: it is large where a study has many runs, and a home may have thousands.
    """
    with open(folder / FILE, "rb") as file:
        found = _HEAD.match(file.read(100))
    return float(found[1]) if found else (folder / FILE).stat().st_mtime


def resolve_weights(run: StudyRun, execution: Path) -> RunConfig:
    """A run's settings: `model.weights=run:NAME` as the path of that run's best checkpoint, all others as they are.

    Raises:
        InputError: when that run of the execution has no checkpoint.
    """
    model, name = run.config.model, run.starts_from
    if name is None:
        return run.config
    checkpoint = best_checkpoint(RunDirectory(execution / name).checkpoints)
    if checkpoint is None:
        raise InputError(f"model.weights={model.weights}: run {name} of {execution} has no checkpoint")
    return dataclasses.replace(run.config, model=dataclasses.replace(model, weights=str(checkpoint)))


_AT_HAND: ContextVar[Execution | None] = ContextVar("execution", default=None)


@contextmanager
def at_hand(execution: Execution) -> Iterator[None]:
    """Let `current_execution` find the execution in the block.

    Parameters of a flow are what a form can hold: a command and a parent flow pass the object beside them.
    """
    token = _AT_HAND.set(execution)
    try:
        yield
    finally:
        _AT_HAND.reset(token)


def current_execution() -> Execution | None:
    """The execution that is at hand: its command or parent flow sees to its devices, its lock and its end."""
    return _AT_HAND.get()


def new_execution() -> str:
    """A name for an execution, or the table of a prediction, that begins now; they are in the order of their names."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
