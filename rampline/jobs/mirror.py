"""A run directory in two places: what changes in the copy of another machine comes into the one of this machine."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rampline.files import complete_directory, remove
from rampline.jobs.tf_config import Task

CHECKPOINTS = "checkpoints/step-*"
# Roles on one machine share its copy: each tells of its own files, and the chief of those that belong to the run.
OF_ROLE = ("logs/{0}.log", "system/{0}.jsonl", "examples/{0}.jsonl")
OF_CHIEF = ("events.jsonl", "tensorboard/**/*", "profile/**/*")
REPLACED_OF_ROLE, REPLACED_OF_CHIEF = ("heartbeats/{0}",), ("probes.json", "result.json")
# Of each role; but what the chief says in it counts.
STOP = "stop.json"
# Marks a copy: nothing else is ever replaced by one.
COPY = ".copy"
# Belongs to the machine of the command.
NOT_COPIED = ("heartbeats", ".lock", "logs", "system", "roles.json", "parity", "artifacts", STOP, COPY)
LONGEST_PIECE = 2**22


@dataclass(frozen=True)
class Change:
    """Something that is new in a copy.

    Attributes:
        kind: `checkpoint` is a whole folder, `gone` one that was taken away, `append` the end of a file, `replace` a
            whole file, `add` one where there is none.
        name: its path in the run directory.
        content: bytes of the file, or of a tar archive of the folder.
    """

    kind: Literal["checkpoint", "gone", "append", "replace", "add"]
    name: str
    content: bytes = b""


class Changes:
    """What a role has changed in its machine's copy since the last look."""

    def __init__(self, root: Path, task: Task) -> None:
        self._root, self._is_chief = root, task.is_chief
        self._appended = _of(task, OF_ROLE, OF_CHIEF)
        self._replaced = (*_of(task, REPLACED_OF_ROLE, REPLACED_OF_CHIEF), STOP)
        self._sizes = {file: (file.stat().st_ino, file.stat().st_size) for file in self._files(self._appended)}
        self._contents = {file: file.read_bytes() for file in self._files(self._replaced)}
        self._checkpoints = self._names()

    def read(self) -> list[Change]:
        """Checkpoints come first, and the result last: what an event tells of is there."""
        # Looked at in the other order, because the role goes on writing.
        replaced, appended = list(self._of_replaced()), list(self._of_appended())
        return [*self._of_checkpoints(), *appended, *replaced]

    def _names(self) -> set[str]:
        if not self._is_chief:
            return set()
        return {str(path.relative_to(self._root)) for path in self._root.glob(CHECKPOINTS)}

    def _files(self, patterns: tuple[str, ...]) -> Iterator[Path]:
        """Those that are there, without what is being written aside."""
        found = (file for pattern in patterns for file in self._root.glob(pattern) if file.is_file())
        return (file for file in found if not any(part.startswith(".") for part in file.relative_to(self._root).parts))

    def _of_checkpoints(self) -> Iterator[Change]:
        names = self._names()
        for name in sorted(names - self._checkpoints):
            with contextlib.suppress(FileNotFoundError):
                yield Change("checkpoint", name, pack(self._root / name))
        yield from (Change("gone", name) for name in self._checkpoints - names)
        self._checkpoints = names

    def _of_appended(self) -> Iterator[Change]:
        for file in self._files(self._appended):
            with contextlib.suppress(FileNotFoundError):
                yield from self._of_file(file)

    def _of_file(self, file: Path) -> Iterator[Change]:
        """What was appended; all of it, where another file has taken its place."""
        with open(file, "rb") as opened:
            number = os.fstat(opened.fileno()).st_ino
            known, start = self._sizes.get(file, (number, 0))
            is_other = known != number
            start = 0 if is_other else start
            opened.seek(start)
            content = opened.read(None if is_other else LONGEST_PIECE)
        if file.suffix == ".jsonl":
            content = content[: content.rfind(b"\n") + 1]
        if content:
            self._sizes[file] = number, start + len(content)
            yield Change("replace" if is_other else "append", str(file.relative_to(self._root)), content)

    def _of_replaced(self) -> Iterator[Change]:
        for file in self._files(self._replaced):
            with contextlib.suppress(FileNotFoundError):
                content = file.read_bytes()
                if self._contents.get(file) != content:
                    self._contents[file] = content
                    kind = "add" if file.name == STOP and not self._is_chief else "replace"
                    yield Change(kind, str(file.relative_to(self._root)), content)


def _of(task: Task, own: tuple[str, ...], of_chief: tuple[str, ...]) -> tuple[str, ...]:
    return (*(pattern.format(task.name) for pattern in own), *(of_chief if task.is_chief else ()))


def apply(root: Path, change: Change) -> None:
    """Make the same change here; a checkpoint is complete or absent at every moment.

    Raises:
        ValueError: when it is outside of the folder.
    """
    path = root / change.name
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{change.name} is not in {root}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if change.kind == "append":
        with open(path, "ab") as file:
            file.write(change.content)
    elif change.kind == "replace" or (change.kind == "add" and not path.exists()):
        aside = path.with_name(f".{path.name}.new")
        aside.write_bytes(change.content)
        os.replace(aside, path)
    elif change.kind == "checkpoint":
        with complete_directory(path, replace=True) as folder:
            unpack(change.content, folder)
    elif change.kind == "gone" and path.exists():
        remove(path)


def pack(folder: Path) -> bytes:
    """A folder as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def pack_run(folder: Path) -> bytes:
    """A run directory as far as a role needs it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            if path.name not in NOT_COPIED:
                archive.add(path, arcname=path.name)
    return buffer.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Fill a folder from a tar archive; nothing is written outside of it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")


def replace_run(content: bytes, folder: Path) -> None:
    """Put a copy of a run directory in the place of the one that an earlier attempt has left.

    Raises:
        FileExistsError: when there is something else.
    """
    if folder.exists() and not (folder / COPY).exists():
        raise FileExistsError(f"{folder} is there already, and is no copy of the run directory: move it away")
    with complete_directory(folder, replace=True) as aside:
        unpack(content, aside)
        (aside / COPY).touch()
