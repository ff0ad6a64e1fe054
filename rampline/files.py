"""Files that are complete or absent: written aside, synced, renamed."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write `text` so that a reader, or a machine that dies, sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of indented JSON; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text())


@contextmanager
def complete_directory(path: Path) -> Iterator[Path]:
    """A directory to fill: renamed to `path` when the block ends well, removed when it does not.

    If `path` has appeared meanwhile (another process was quicker), that one is kept.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield aside
        os.chmod(aside, 0o755)
        _sync_tree(aside)
        try:
            os.rename(aside, path)
        except OSError:
            if not path.is_dir():
                raise
        sync_directory(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


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
