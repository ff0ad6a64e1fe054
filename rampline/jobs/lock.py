"""One process at a time in a run directory, or in another folder; and roles that a killed launcher has left."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from rampline.errors import InputError, InUse
from rampline.files import locked, read_json
from rampline.jobs.waiting import wait_until
from rampline.record.run_directory import RunDirectory

LEAVE_SECONDS = 15.0


@contextmanager
def hold_run(run_directory: RunDirectory) -> Iterator[None]:
    """Hold a run directory for the length of the block; roles that a killed launcher left are waited for.

    Raises:
        InUse: when another launcher holds it, or its roles go on.
        InputError: when it cannot be written.
    """
    with hold(run_directory.path):
        _wait_for_old_roles(run_directory)
        yield


@contextmanager
def hold(folder: Path, *, patience: float = 0) -> Iterator[None]:
    """Hold a folder for the length of the block, by its file `.lock`; makes it where it is not there yet.

    Raises:
        InUse: when another process holds it for `patience` more seconds.
        InputError: when it cannot be written.
    """
    holders: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise InputError(f"{folder} cannot be written: {error.strerror}") from error
    with locked(folder / ".lock", holders.append, seconds=patience) as is_held:
        if not is_held:
            raise InUse(f"{folder} is in use by {holders[0]}: wait for it, or end it")
        yield


def _wait_for_old_roles(run_directory: RunDirectory) -> None:
    """Roles notice that their launcher was killed; two sets of them must never write at once."""
    if not wait_until(lambda: not _roles_alive(run_directory), LEAVE_SECONDS):
        old = _roles_alive(run_directory)
        raise InUse(f"run directory {run_directory.path} still has roles of a killed launcher: end {old}")


def _roles_alive(run_directory: RunDirectory) -> list[int]:
    if not run_directory.roles_file.is_file():
        return []
    here = socket.gethostname()
    ids = [role["pid"] for role in read_json(run_directory.roles_file)["roles"] if role["host"] == here]
    return [pid for pid in ids if _is_role(pid, run_directory)]


def _is_role(pid: int, run_directory: RunDirectory) -> bool:
    """Whether the process is one of the directory's roles, and not another that has got its number since."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and str(run_directory.path) in process.cmdline()
    except psutil.Error:
        return False
