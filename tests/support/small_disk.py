"""Disks that refuse to be written: a small one, which is soon full, and one that is read-only for a while."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def mount(*arguments: str) -> None:
    """As the program; the test is skipped where it is not allowed."""
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount is not permitted here: {done.stderr.strip()}")


@contextmanager
def small_disk(folder: Path, megabytes: int, options: str = "rw") -> Iterator[Path]:
    """The new folder with a file system of that size in memory."""
    folder.mkdir()
    mount("-t", "tmpfs", "-o", f"{options},size={megabytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """In the block nothing can be written there."""
    mount("--bind", str(folder), str(folder))
    try:
        mount("-o", "remount,ro,bind", str(folder))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Leave no byte on the disk of a folder; returns the file that takes them."""
    path, size = folder / "filler", 2**20
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while size:
            try:
                os.write(descriptor, bytes(size))
            except OSError:
                size //= 2
    finally:
        os.close(descriptor)
    return path
