"""A folder that the files of a source must not lead out of."""

from __future__ import annotations

import functools
import os
import stat
from pathlib import Path

from rampline.errors import DatasetError


class Boundary:
    """Looks at files by their paths, as long as these stay inside a folder when links are followed."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        # A folder holds many files, and following its path costs a system call per part.
        self._real_folder = functools.lru_cache(maxsize=10_000)(os.path.realpath)

    def stat(self, path: str | Path) -> os.stat_result:
        """Size and times of a regular file.

        Raises:
            DatasetError: when the path leads outside, or to something that is no regular file; naming both.
            OSError: when nothing is there.
        """
        folder, name = os.path.split(path)
        real = os.path.join(self._real_folder(folder), name)
        if name in ("", ".", "..") or os.path.islink(real):
            real = os.path.realpath(path)
        if not real.startswith(self._root + os.sep):
            raise DatasetError(f"{path} leads to {real}, outside {self._root}: images must lie inside")
        found = os.stat(real)
        if not stat.S_ISREG(found.st_mode):
            # Reading a pipe or a terminal would wait for ever.
            raise DatasetError(f"{path} is no regular file: images must be files")
        return found
