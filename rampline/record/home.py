"""Where Rampline keeps things: `RAMPLINE_HOME`, by default `./.rampline`."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from rampline.errors import InputError


class Below:
    """The path of a name in a folder, which the owner has in its field `of`: a property in one line."""

    def __init__(self, name: str, *, of: str = "path") -> None:
        self._name, self._folder = name, of

    def __get__(self, owner: object, _: type) -> Path:
        return getattr(owner, self._folder) / self._name


@dataclass(frozen=True, kw_only=True)
class Home:
    """The folders of one Rampline installation; nothing is created by naming them."""

    root: Path

    data = Below("data", of="root")  # prepared datasets, one folder per content address
    runs = Below("runs", of="root")  # run directories: `runs/STUDY/EXECUTION/RUN`
    reports = Below("reports", of="root")  # comparisons: `reports/STUDY/EXECUTION/{report.html,comparison.csv}`
    predictions = Below("predictions", of="root")  # labels of folders of images: `predictions/STUDY/TIME-NUMBER.csv`
    tracking_database = Below("mlflow.db", of="root")  # the default MLflow database
    artifacts = Below("mlartifacts", of="root")  # the default MLflow artifact root

    @classmethod
    def from_environment(cls) -> Home:
        """`$RAMPLINE_HOME`, else `.rampline` in the current folder, as an absolute path."""
        # A shell leaves `~` alone in quotes, and an env file has no shell.
        return cls(root=Path(os.path.expanduser(os.environ.get("RAMPLINE_HOME") or ".rampline")).absolute())

    @classmethod
    def around(cls, execution: Path) -> Home | None:
        """The one that `runs/STUDY/EXECUTION` is in, wherever that has been moved; `None` for a folder elsewhere."""
        parents = execution.absolute().parents
        return cls(root=parents[2]) if len(parents) > 2 and parents[1].name == "runs" else None

    @classmethod
    def of(cls, execution: Path, stored: Path) -> Home:
        """The one that an execution is in: this process's or `stored`, if its runs are the same folder (by a link to
        another disk, say), else the one around it, else `stored`."""
        home, parents = cls(root=stored), execution.resolve().parents
        linked = (known for known in (cls.from_environment(), home) if known.runs.resolve() in parents)
        return next(linked, None) or cls.around(execution) or home


def private_mask(home: Home) -> int:
    """The permissions that files of `home` do not give; a home that its group may write to is the group's."""
    try:
        is_shared = home.root.stat().st_mode & stat.S_IWGRP
    except OSError:
        is_shared = False
    return 0o007 if is_shared else 0o077


def keep_private(home: Home) -> int:
    """Files that this process makes from now on, and those that it starts, are closed to other users.

    Returns:
        the umask before.

    Raises:
        InputError: for a home that is another user's, and is used only because it is in the current folder.
    """
    if not os.environ.get("RAMPLINE_HOME") and _is_of_others(home.root):
        raise InputError(
            f"{home.root} belongs to another user, or all may write to it: they would decide what is run; set "
            f"RAMPLINE_HOME to a folder of your own, or to this one if you trust them"
        )
    before = os.umask(0o077)
    os.umask(before | private_mask(home))
    return before


def _is_of_others(root: Path) -> bool:
    """Whether neither this user nor root has made it, or the link in its place; a folder of root's may be open to all.

    What is ours is taken as it is: on some mounts all may write to everything.
    """
    try:
        link, folder = root.lstat(), root.stat()
    except OSError:
        return False
    is_open = folder.st_uid != os.getuid() and folder.st_mode & stat.S_IWOTH
    return bool(is_open or not {link.st_uid, folder.st_uid} <= {0, os.getuid()})


def tracking_uri(home: Home) -> str:
    """`$MLFLOW_TRACKING_URI`, else the sqlite database of `home`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or default_uri(home)


def default_uri(home: Home) -> str:
    """The sqlite database of `home`."""
    return f"sqlite:///{home.tracking_database}"
