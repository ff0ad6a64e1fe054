"""The fence between attempts of a run: what is left of one that is over writes nothing in the run directory.

An attempt has a folder there as long as it lasts, which its roles know by `rampline.files.THROUGH`. Whatever they make
complete, replace or remove goes through that folder by a rename, and that fails once the folder is gone, also on a
shared disk. Before they append to a file they look whether the folder is there.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from rampline.files import ASIDE, THROUGH, delete_unfinished, remove

NAME = ".attempt-{0}"


@contextmanager
def fence(run_directory: Path, number: int, logs: Collection[Path]) -> Iterator[dict[str, str]]:
    """Keep out all earlier attempts, and with the end of the block this one.

    Args:
        run_directory: of the run.
        number: of the attempt.
        logs: of its roles: what an old one prints must not get there.

    Yields:
        what its roles need in their environment.
    """
    _end_all(run_directory)
    delete_unfinished(run_directory / "checkpoints", f"step-*{ASIDE}")  # of a copy's, where the launcher was killed
    for log in logs:
        if log.is_file():
            _renew(log)
    folder = run_directory / NAME.format(number)
    folder.mkdir()
    try:
        yield {THROUGH: str(folder)}
    finally:
        _end_all(run_directory)


def _end_all(run_directory: Path) -> None:
    for folder in run_directory.glob(NAME.format("*")):
        remove(folder)
    delete_unfinished(run_directory, NAME.format("*"))


def _renew(log: Path) -> None:
    """Put a copy in its place: what an old role prints goes to a file that has no name any more."""
    copy = log.with_suffix(".new")
    shutil.copyfile(log, copy)
    os.replace(copy, log)
