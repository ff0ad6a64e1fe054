"""Image files below a folder, one at a time; what cannot be read has its reason instead of its content."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rampline.data.boundary import Boundary
from rampline.data.sources.folder import DECODABLE_SUFFIXES, OTHER_SUFFIXES
from rampline.errors import DatasetError


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageToLabel:
    """A file, or why it is not used; `content` is the encoded image."""

    path: str
    content: bytes = b""
    problem: str = ""


def walk_images(folder: Path) -> Iterator[Path]:
    """Files that are images by their names, in the order of their paths, hidden ones apart; and links to folders.

    One directory's names are held at a time. Links to folders are not entered: they may lead round in circles.
    """
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (path for name in folders if (path := Path(parent, name)).is_symlink())
        for name in sorted(name for name in names if not name.startswith(".")):
            if Path(name).suffix.lower() in DECODABLE_SUFFIXES | OTHER_SUFFIXES:
                yield Path(parent, name)


def read_image(path: Path, boundary: Boundary) -> ImageToLabel:
    """The file's content; a link that leads outside, a pipe, or a file that may not be read has a problem instead."""
    # A name may hold bytes that are no text; a table holds only text.
    name = os.fsencode(path).decode(errors="replace")
    if path.is_dir():
        return ImageToLabel(path=name, problem="a link to a folder is not followed")
    try:
        boundary.stat(path)
        return ImageToLabel(path=name, content=path.read_bytes())
    except OSError as error:
        return ImageToLabel(path=name, problem=f"cannot be read: {error.strerror}")
    except DatasetError as error:
        return ImageToLabel(path=name, problem=str(error))


def _refuse(error: OSError) -> None:
    raise DatasetError(f"cannot read the folder {error.filename}: {error.strerror}") from error
