"""A run directory in two places: what changes in the copy of another machine comes into the one of this machine."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
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
REPLACED_OF_ROLE, REPLACED_OF_CHIEF = ("heartbeats/{0}",), ("stop.json", "probes.json", "result.json")
# Belongs to the machine of the command.
NOT_COPIED = ("heartbeats", ".lock", "logs", "system", "roles.json", "parity", "artifacts", "stop.json")
LONGEST_PIECE = 2**22


@dataclass(frozen=True)
class Change:
    """Something that is new in a copy.

    Attributes:
        kind: `checkpoint` is a whole folder, `gone` one that was taken away, `append` the end of a file, `replace` a
            small file.
        name: its path in the run directory.
        content: bytes of the file, or of a tar archive of the folder.
    """

    kind: Literal["checkpoint", "gone", "append", "replace"]
    name: str
    content: bytes = b""


class Changes:
    """What a role has changed in its machine's copy since the last look."""

    def __init__(self, root: Path, task: Task) -> None:
        self._root, self._is_chief = root, task.is_chief
        self._appended = _of(task, OF_ROLE, OF_CHIEF)
        self._replaced = _of(task, REPLACED_OF_ROLE, REPLACED_OF_CHIEF)
        self._sizes = {file: file.stat().st_size for file in self._files(self._appended)}
        self._contents = {file: file.read_bytes() for file in self._files(self._replaced)}
        self._checkpoints = self._names()

    def read(self) -> list[Change]:
        """Checkpoints come first, and the result last: what an event tells of is there."""
        return [*self._of_checkpoints(), *self._of_appended(), *self._of_replaced()]

    def _names(self) -> set[str]:
        if not self._is_chief:
            return set()
        return {str(path.relative_to(self._root)) for path in self._root.glob(CHECKPOINTS)}

    def _files(self, patterns: tuple[str, ...]) -> Iterator[Path]:
        return (file for pattern in patterns for file in self._root.glob(pattern) if file.is_file())

    def _of_checkpoints(self) -> Iterator[Change]:
        names = self._names()
        for name in sorted(names - self._checkpoints):
            with contextlib.suppress(FileNotFoundError):
                yield Change("checkpoint", name, pack(self._root / name))
        yield from (Change("gone", name) for name in self._checkpoints - names)
        self._checkpoints = names

    def _of_appended(self) -> Iterator[Change]:
        for file in self._files(self._appended):
            start = self._sizes.get(file, 0)
            with open(file, "rb") as opened:
                opened.seek(start)
                content = opened.read(LONGEST_PIECE)
            if file.suffix == ".jsonl":
                content = content[: content.rfind(b"\n") + 1]
            if content:
                self._sizes[file] = start + len(content)
                yield Change("append", str(file.relative_to(self._root)), content)

    def _of_replaced(self) -> Iterator[Change]:
        for file in self._files(self._replaced):
            with contextlib.suppress(FileNotFoundError):
                content = file.read_bytes()
                if self._contents.get(file) != content:
                    self._contents[file] = content
                    yield Change("replace", str(file.relative_to(self._root)), content)


def _of(task: Task, own: tuple[str, ...], of_chief: tuple[str, ...]) -> tuple[str, ...]:
    return (*(pattern.format(task.name) for pattern in own), *(of_chief if task.is_chief else ()))


def apply(root: Path, change: Change) -> None:
    """Make the same change here; a checkpoint is complete or absent at every moment."""
    path = root / change.name
    path.parent.mkdir(parents=True, exist_ok=True)
    if change.kind == "append":
        with open(path, "ab") as file:
            file.write(change.content)
    elif change.kind == "replace":
        aside = path.with_name(f".{path.name}.new")
        aside.write_bytes(change.content)
        os.replace(aside, path)
    elif change.kind == "checkpoint":
        with complete_directory(path, replace=True) as folder:
            unpack(change.content, folder)
    elif path.exists():
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
    """Put a run directory in the place of the one that an earlier attempt has left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    unpack(content, folder)
