"""Files that are complete or absent: written aside, synced, renamed; and those by which one process at a time works."""

from __future__ import annotations

import csv
import ctypes
import dataclasses
import fcntl
import functools
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Self

from rampline.errors import NO_LOCKS, ConfigError, InputError

if TYPE_CHECKING:
    import pandas as pd
    from pydantic import TypeAdapter

# Of a role: the folder that is there as long as its attempt, see `rampline.jobs.fence`. What it writes or removes in
# the run directory is renamed through it.
THROUGH = "RAMPLINE_ATTEMPT_FOLDER"
LOCK_POLL_SECONDS = 0.05
# For `delete_unfinished`: what a file or directory has behind its name while it is written.
ASIDE = f".{'[0-9a-f]' * 8}"
# What a spreadsheet runs as a formula, behind any number of the apostrophes that keep it from that; but for numbers.
# The last four are the full-width forms, which count where people write so.
_FORMULA = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def lock_now(file: IO[str], how: int = fcntl.LOCK_SH) -> bool:
    """Take the lock of an open file until it is closed, if nobody holds it; returns whether it was free."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        reason = f"the file system of {file.name} has no file locks ({error.strerror})"
        raise InputError(f"{reason}: set RAMPLINE_HOME to a folder of another one") from error
    return True


@contextmanager
def locked(path: Path, on_held: Callable[[str], None] = lambda _: None, *, seconds: float = math.inf) -> Iterator[bool]:
    """Hold a lock file for the length of the block; the kernel frees it when its holder ends, however it ends.

    Yields whether it could be had in time.

    Args:
        path: the file; who holds it stands in it.
        on_held: is called with that where another process holds it. Unless it raises, that process is waited for.
        seconds: to wait for it; by default as long as it takes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Opened for appending: the next process must be able to read what the holder wrote about itself.
    with open(path, "a+") as file:
        is_held = lock_now(file, fcntl.LOCK_EX)
        if not is_held:
            file.seek(0)
            on_held(file.read().strip() or "another process")
            is_held = _lock_within(seconds, file)
        if is_held:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
        yield is_held


def _lock_within(seconds: float, file: IO[str]) -> bool:
    if seconds == math.inf:
        fcntl.flock(file, fcntl.LOCK_EX)
        return True
    deadline = time.monotonic() + seconds
    while not (is_held := lock_now(file, fcntl.LOCK_EX)) and time.monotonic() < deadline:
        time.sleep(LOCK_POLL_SECONDS)
    return is_held


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write `text` so that a reader, or a machine that dies, sees the old file or the new one, never a part.

    The umask narrows `mode`.
    """
    make_directory(path.parent)
    aside = _aside(path)
    try:
        with open(aside, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any, *, mode: int = 0o666) -> None:
    """`write_text` of indented JSON; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n", mode=mode)


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def json_digest(value: Any) -> str:
    """SHA-256 of a value that JSON can hold, in hexadecimal: equal for equal values, whatever the order of their keys.

    Addresses of datasets and tags in MLflow are made from it: the bytes that are hashed must stay as they are.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of the content of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class JsonData:
    """Base of a frozen dataclass that JSON can hold: of plain values, tuples, mappings and dataclasses of these."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """From `dataclasses.asdict`, also read back from JSON; fields that the class does not have are passed over.

        Raises:
            ValueError: when it is not that.
        """
        return _adapter(cls).validate_python(values)

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` has written."""
        return cls.from_dict(read_json(path))

    def write(self, path: Path) -> None:
        """Write it as JSON, complete or not at all."""
        write_json(path, dataclasses.asdict(self))


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # most readers of files need none

    return TypeAdapter(kind)


def refuse_newer(path: Path | str, content: dict[str, Any], *, version: int) -> None:
    """Stop at a file whose `version` is above the one that this code reads; a file without the key has version 1.

    Raises:
        ConfigError: when a newer rampline has written the file.
    """
    found = content.get("version", 1)
    if found > version:
        raise ConfigError(
            f"{path} was written by a newer rampline (version {found}); this one reads {version}: upgrade"
        )


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """`write_text` of a table without its index, its texts as `csv_cell` and in quotation marks."""
    # Unquoted, a carriage return would begin a row, and with that another cell.
    cells = table.rename(columns=csv_cell).map(csv_cell)
    write_text(path, cells.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC))


def read_csv(path: Path, *, names: str = "", **options: Any) -> pd.DataFrame:
    """A table that `write_csv` has written, with its texts as they were; `options` of `pandas.read_csv`.

    `names` is a column in which `1` and `null` are names.
    """
    import pandas as pd  # a second: most readers of files need none

    table = pd.read_csv(path, **options)
    if names:
        table[names] = pd.read_csv(path, usecols=[names], dtype=str, keep_default_na=False)[names]
    return table.rename(columns=_from_cell).map(_from_cell)


def csv_cell(value: Any) -> Any:
    """The value for a CSV: a text that a spreadsheet would run as a formula gets an apostrophe before it."""
    is_formula = isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value)
    return f"'{value}" if is_formula else value


def _from_cell(value: Any) -> Any:
    is_marked = isinstance(value, str) and value.startswith("'") and _FORMULA.match(value)
    return value[1:] if is_marked else value


@contextmanager
def complete_directory(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A directory to fill: renamed to `path` when the block ends well, removed when it does not.

    A process that is killed inside leaves a directory `.NAME.…` beside it, see `delete_unfinished`.

    Args:
        path: what appears when the block ends.
        replace: take the place of what is at `path` by then; else, if `path` has appeared meanwhile (another process
            was quicker), that one is kept.
    """
    make_directory(path.parent)
    aside = _aside(path)
    aside.mkdir()
    try:
        yield aside
        _sync_tree(aside)
        if replace and os.path.lexists(path):
            _exchange(aside, path)
        else:
            try:
                os.rename(aside, path)
            except OSError:
                if not path.is_dir():
                    raise
        sync_directory(path.parent)
    finally:
        _delete(aside)


def remove(path: Path) -> None:
    """Remove a file or a tree so that a kill never leaves a part of it under its name."""
    _delete(_move_aside(path))


def delete_unfinished(folder: Path, pattern: str) -> None:
    """Delete what processes that were killed have left of directories with names like `pattern`."""
    for path in folder.glob(f".{pattern}"):
        _delete(path)


def leave_if_over() -> None:
    """End this process, without a word, where it belongs to an attempt that is over; see `rampline.jobs.fence`."""
    folder = os.environ.get(THROUGH)
    if folder and _is_gone(folder):
        os._exit(1)


def _is_gone(folder: str) -> bool:
    """Any other error, such as that of a disk which does not answer for a moment, does not say so."""
    try:
        return not stat.S_ISDIR(os.stat(folder).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def make_directory(path: Path) -> None:
    """Make `path` and its parents, to last."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_directory(folder.parent)


def sync_directory(path: Path) -> None:
    """Make a rename inside `path` last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(root: Path) -> None:
    for folder, _, names in os.walk(root):
        for name in names:
            with open(Path(folder) / name, "rb") as file:
                os.fsync(file.fileno())
        sync_directory(Path(folder))


def _exchange(aside: Path, path: Path) -> None:
    if _swap(aside, path):
        return
    old = _move_aside(path)
    try:
        os.rename(aside, path)
    except OSError:
        os.rename(old, path)
        raise
    sync_directory(path.parent)
    _delete(old)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two names in one step, so that both are there at every moment; False where that cannot be done.

    It is renameat2(2) with RENAME_EXCHANGE, which Linux has, but not each of its file systems.
    """
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    at_working_directory, exchange = -100, 2
    names = os.fsencode(one), os.fsencode(other)
    return bool(renameat2) and renameat2(at_working_directory, names[0], at_working_directory, names[1], exchange) == 0


def _move_aside(path: Path) -> Path:
    # A rename alone: a full disk may have no room for a new directory.
    aside = _aside(path)
    os.rename(path, aside)
    return aside


def _aside(path: Path) -> Path:
    through = os.environ.get(THROUGH)
    is_inside = through and path.is_relative_to(Path(through).parent)
    return (Path(through) if through and is_inside else path.parent) / f".{path.name}.{secrets.token_hex(4)}"


def _delete(path: Path) -> None:
    """What cannot be deleted stays: under a name that nobody reads it does no harm."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
