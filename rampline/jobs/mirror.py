"""Folders in two places: what changes in the copies of another machine comes into those of this one."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from rampline.files import complete_directory, remove

# Folders that are complete or absent.
WHOLE = ("checkpoints/step-*", "model")
# Files that are small, and written anew. They are told of last: what they say holds for all others.
LAST = ("heartbeats/*", "probes.json", "rungs/*", "result.json", "answer.json", "stop.json")
# Of each role; but what the chief says in it counts.
STOP = "stop.json"
# Marks a copy: nothing else is ever replaced by one.
COPY = ".copy"
# Belongs to the machine of the command.
NOT_COPIED = ("heartbeats", ".lock", "logs", "system", "roles.json", "parity", "artifacts", STOP, COPY)


@dataclass(frozen=True)
class Change:
    """Something that is new in a copy.

    Attributes:
        kind: `whole` is a folder that is complete or absent, `gone` such a folder, or a file, that was taken away,
            `append` the end of a file, `replace` all of a file, `add` one where there is none.
        path: the same on both machines.
        content: bytes of the file, or of a tar archive of the folder.
    """

    kind: Literal["whole", "gone", "append", "replace", "add"]
    path: str
    content: bytes = b""


class Changes:
    """What has changed in the copies of this machine since the last look.

    Args:
        roots: the copies, and single files; what is in several of them counts once.
        is_chiefs: whether the chief is on this machine.
    """

    def __init__(self, roots: Collection[Path], *, is_chiefs: bool) -> None:
        self._roots = [root for root in roots if not {*root.parents} & {*roots}]
        self._stop: Literal["replace", "add"] = "replace" if is_chiefs else "add"
        self._sizes = {file: _place(file.stat()) for file in self._files() if not _is(file, LAST)}
        self._contents = {file: file.read_bytes() for file in self._files() if _is(file, LAST)}
        self._folders = self._whole_folders()

    def read(self) -> list[Change]:
        """Folders come first, and what is said last: what an event tells of is there."""
        gone = [*self._of_gone()]  # what takes such a place meanwhile is told of below
        # Looked at in the other order, because the processes go on writing.
        last = [change for file in self._files() if _is(file, LAST) for change in self._of_last(file)]
        told = [change for file in self._files() if file.suffix == ".jsonl" for change in self._of_file(file)]
        is_other = (file for file in self._files() if file.suffix != ".jsonl" and not _is(file, LAST))
        other = [change for file in is_other for change in self._of_file(file)]
        return [*gone, *self._of_folders(), *other, *told, *last]

    def _files(self) -> list[Path]:
        return self._look()[0]

    def _look(self) -> tuple[list[Path], list[Path]]:
        """Files, without those of whole folders, and these; nothing of what is being written aside."""
        files, folders = [root for root in self._roots if root.is_file()], list[Path]()
        for root in self._roots:
            for here, below, names in os.walk(root):
                whole = [name for name in below if _is(Path(here, name), WHOLE)]
                below[:] = [name for name in below if name[0] != "." and name not in whole]
                folders += [Path(here, name) for name in whole]
                files += [Path(here, name) for name in names if name[0] != "."]
        return files, folders

    def _whole_folders(self) -> dict[Path, int]:
        """Their inodes: another one has taken the place."""
        found = {}
        for folder in self._look()[1]:
            with contextlib.suppress(FileNotFoundError):
                found[folder] = folder.stat().st_ino
        return found

    def _of_folders(self) -> Iterator[Change]:
        now = self._whole_folders()
        for path in sorted(now):
            if self._folders.get(path) != now[path]:
                with contextlib.suppress(FileNotFoundError):
                    yield Change("whole", str(path), pack(path))
        yield from (Change("gone", str(path)) for path in self._folders if path not in now and self._is_copied(path))
        self._folders = now

    def _of_gone(self) -> Iterator[Change]:
        there = {*self._files()}
        for known in (self._sizes, self._contents):
            for file in known.keys() - there:
                del known[file]
                if self._is_copied(file):
                    yield Change("gone", str(file))

    def _is_copied(self, path: Path) -> bool:
        """Whether the copy that it was in is there still: what clears a whole copy away takes nothing from the run."""
        return any((root / COPY).exists() for root in path.parents if root in self._roots)

    def _of_file(self, file: Path) -> Iterator[Change]:
        """What was appended; all of it, where another file has taken its place."""
        with contextlib.suppress(FileNotFoundError), open(file, "rb") as opened:
            number, size = _place(os.fstat(opened.fileno()))
            known, start = self._sizes.get(file, (number, 0))
            is_other = known != number or size < start
            start = 0 if is_other else start
            opened.seek(start)
            content = opened.read()
            if file.suffix == ".jsonl":
                content = content[: content.rfind(b"\n") + 1]
            if content:
                self._sizes[file] = number, start + len(content)
                yield Change("replace" if is_other else "append", str(file), content)

    def _of_last(self, file: Path) -> Iterator[Change]:
        with contextlib.suppress(FileNotFoundError):
            content = file.read_bytes()
            if self._contents.get(file) != content:
                self._contents[file] = content
                yield Change(self._stop if file.name == STOP else "replace", str(file), content)


def _is(path: Path, patterns: Collection[str]) -> bool:
    return any(path.match(pattern) for pattern in patterns)


def _place(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_size


def apply(roots: Collection[Path], change: Change) -> None:
    """Make the same change here; a whole folder is complete or absent at every moment.

    Raises:
        ValueError: when it is in none of the roots.
    """
    path = Path(change.path)
    if not any(path.resolve().is_relative_to(root.resolve()) for root in roots):
        raise ValueError(f"{change.path} is not in {', '.join(map(str, roots))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if change.kind == "append":
        with open(path, "ab") as file:
            file.write(change.content)
    elif change.kind == "replace" or (change.kind == "add" and not path.exists()):
        aside = path.with_name(f".{path.name}.new")
        with open(aside, "wb") as file:
            file.write(change.content)
            if path.suffix == ".json":  # a result that is there and empty after a power cut would count as one
                file.flush()
                os.fsync(file.fileno())
        os.replace(aside, path)
    elif change.kind == "whole":
        with complete_directory(path, replace=True) as folder:
            unpack(change.content, folder)
    elif change.kind == "gone" and path.exists():
        remove(path)


def pack(folder: Path, *, without: Collection[str] = (), beside: Mapping[str, Path] | None = None) -> bytes:
    """A folder as a tar archive, but for what has one of these names; with what is `beside` it under other names."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in sorted(folder.iterdir()):
            if path.name not in without:
                archive.add(path, arcname=path.name)
        for name, path in (beside or {}).items():
            archive.add(path.resolve(), arcname=name)  # a link would lead nowhere on another machine
    return buffer.getvalue()


def unpack(content: bytes, folder: Path) -> None:
    """Fill a folder from a tar archive; nothing is written outside of it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
            return
        # Python before 3.11.4, as Debian 12 has it.
        for member in archive.getmembers():
            parts = PurePosixPath(member.name).parts
            if not (member.isfile() or member.isdir()) or ".." in parts or parts[:1] == ("/",):
                raise tarfile.ReadError(f"{member.name} is refused: it is no file or folder below the copy")
        archive.extractall(folder)


def replace_run(content: bytes, folder: Path) -> None:
    """Put a copy of a folder in the place of the one that was put there before.

    Raises:
        FileExistsError: when there is something else.
    """
    if folder.exists() and not (folder / COPY).exists():
        raise FileExistsError(f"{folder} is there already, and is no copy of the run directory: move it away")
    with complete_directory(folder, replace=True) as aside:
        unpack(content, aside)
        (aside / COPY).touch()
