"""`folder:PATH`: a sub-folder per class, all below `PATH` or below `PATH/train`, `PATH/validation` and `PATH/test`.

`PATH` may be a .zip or .tar archive of such a folder. Links to images that lie in the folder too are followed; what
leads outside, and links to folders, which may lead round in circles, are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from rampline.config import DataConfig
from rampline.data.archives import Boundary, is_archive, stem, unpack_once
from rampline.data.sources.image_files import SPLIT_ALLOWED, ImageFile, files_fingerprint, files_source, split_called
from rampline.data.sources.source import MOST_NAMED, Source, Tell, path_of
from rampline.errors import DatasetError
from rampline.record.units import escape_controls

_DECODABLE = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp")
# Images to a person, but not to TensorFlow: they are listed as undecodable rather than overlooked.
_OTHER = (".tif", ".tiff", ".heic", ".avif", ".ppm", ".pgm")
IMAGE_SUFFIXES = frozenset(_DECODABLE + _OTHER)


def directory_name(config: DataConfig) -> str:
    """What the prepared directory is named after."""
    root = path_of(config.source)
    return stem(root) if _is_archive(root) else root.resolve().name


def stat_fingerprint(config: DataConfig, tfds_directory: Path) -> str:
    """A digest of names, sizes and times of all image files, or of those of the archive."""
    root = path_of(config.source)
    return _archive_fingerprint(root) if _is_archive(root) else files_fingerprint(_list_files(root, config.group)[0])


def open_source(
    config: DataConfig, tfds_directory: Path, *, for_training: bool = True, tell: Tell | None = None
) -> Source:
    """Classes are the names of the sub-folders, sorted.

    Raises:
        DatasetError: when the folder is missing, holds no images, a split without class folders (but in an archive) or
            a link that is refused, has fewer than two classes, or is an archive that cannot be unpacked.
    """
    root = path_of(config.source)
    if _is_archive(root):
        return open_archive(root, config.group, tfds_directory, for_training=for_training)
    return _open_folder(root, config.group, for_training=for_training)


def open_archive(archive: Path, group: str | None, tfds_directory: Path, *, for_training: bool) -> Source:
    """The folder in `archive`, which is unpacked unless it was before; see `open_source`. `group` is `data.group`."""
    fingerprint = _archive_fingerprint(archive)
    folder = _enter(unpack_once(archive, tfds_directory.parent / "unpacked"))
    return dataclasses.replace(
        _open_folder(folder, group, for_training=for_training, is_unpacked=True), stat_fingerprint=fingerprint
    )


def _open_folder(root: Path, group: str | None, *, for_training: bool, is_unpacked: bool = False) -> Source:
    files, notes = _list_files(root, group, is_unpacked=is_unpacked)
    if not group:  # of which the user says what the sub-folders are
        notes += _tell_of_levels(root, files)
    return files_source(files, origin=f"folder {root}", notes=notes, for_training=for_training)


def _is_archive(root: Path) -> bool:
    return is_archive(root) and not os.path.isdir(root)


def _archive_fingerprint(archive: Path) -> str:
    try:
        stat = archive.stat()
    except OSError as error:
        raise DatasetError(f"archive {archive} cannot be read: {error.strerror}") from error
    return hashlib.sha256(f"{archive.name} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()


def _enter(folder: Path) -> Path:
    """Archives often hold a single folder with everything in it, and a text beside it."""
    entries = [path for path in _entries(folder) if path.is_dir() or is_image(path.name)]
    if len(entries) != 1 or not entries[0].is_dir():
        return folder
    # `test_data.zip` may hold `test_data/train` and `test_data/test`.
    is_split = split_called(entries[0].name) and not any(split_called(path.name) for path in _entries(entries[0]))
    return folder if is_split else _enter(entries[0])


def _list_files(root: Path, group: str | None, *, is_unpacked: bool = False) -> tuple[list[ImageFile], tuple[str, ...]]:
    """The image files in order, and lines on what is left out; nobody can sort what was unpacked from an archive."""
    try:
        found = "" if root.is_dir() else "is a file" if root.exists() else "does not exist"
    except OSError as error:  # a parent that may not be looked into, or a name that is too long
        found = f"cannot be read: {error.strerror}"
    if found:
        needs = "a folder with a sub-folder per class, or a .zip or .tar archive of one"
        raise DatasetError(f"folder {root} {found}: data.source=folder:PATH needs {needs}")
    files: list[ImageFile] = []
    others, empty, boundary, prefix = 0, 0, Boundary(root), os.path.join(root, "")
    class_folders: dict[str, str] = {}
    split_folders = _split_folders(root)
    loose = {folder: _count_loose_images(folder) for folder in (root, *(folder for _, folder in split_folders))}
    for split, folder in split_folders:
        sub_folders = _sub_folders(folder)
        if folder != root and loose[folder] and not sub_folders and not is_unpacked:
            raise DatasetError(
                f"{folder} holds images, but no folder per class: sort them into {folder.name}/CLASS/1.jpg, or move "
                "the folder elsewhere"
            )
        for class_folder in sub_folders:
            other = class_folders.setdefault(_printable(class_folder.name), class_folder.name)
            if other != class_folder.name:
                raise DatasetError(
                    f"folder {root} has classes that read alike, {os.fsencode(other)} and "
                    f"{os.fsencode(class_folder.name)}: their names must be UTF-8"
                )
            before = len(files)
            for path in _walk(class_folder):
                if is_image(path):
                    stat = _stat(path, boundary)
                    files.append(_image_file(path, stat, prefix, split=split, class_name=class_folder.name))
                else:
                    others += 1
            empty += len(files) == before
    if not files:
        kinds = ".jpg, .png, .gif, .bmp, .webp"
        raise DatasetError(f"folder {root} holds no images: they are looked for in a sub-folder per class ({kinds})")
    counts = {
        f"files below {root} are no images by their names": others,
        f"images below {root} lie in no folder of a class": sum(loose.values()),
        f"folders of classes below {root} hold no images": empty,
    }
    notes = tuple(f"{count} {what} and are left alone" for what, count in counts.items() if count)
    return _with_groups(files, group, root) if group else files, notes


def is_image(path: str) -> bool:
    """Whether a file is an image by its name."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def _count_loose_images(folder: Path) -> int:
    """Image files that lie directly in a folder of class folders: they have no class."""
    return sum(is_image(path.name) and os.path.isfile(path) for path in _entries(folder))


def _tell_of_levels(root: Path, files: Sequence[ImageFile]) -> tuple[str, ...]:
    """A line where the classes may be a level below the folders that are taken for them, as in `fold1/cat/1.jpg`."""
    levels_above = len(_split_folders(root)[0][1].relative_to(root).parts)
    below: dict[str, set[str]] = {}
    for file in files:
        sub_folders = file.name.split("/")[levels_above + 1 : -1]
        below.setdefault(file.class_name, set()).add(sub_folders[0] if sub_folders else "")
    shared = sorted(set.intersection(*below.values()))
    # One name is no two classes: each class may have its images in a folder `images`.
    if len(shared) < 2 or any("" in names for names in below.values()):
        return ()
    called = ", ".join(map(repr, shared[:MOST_NAMED])) + (", …" if len(shared) > MOST_NAMED else "")
    way_out = "if these are the classes, move them up, or write a csv: table"
    return (f"all classes of {root} have sub-folders called {called}: {way_out}",)


def _with_groups(files: Sequence[ImageFile], pattern: str, root: Path) -> list[ImageFile]:
    """Each with the first capture group of `pattern` that takes part in a match and is not empty."""
    search = re.compile(pattern).search
    found = ((file, search(file.name)) for file in files)
    grouped = [
        dataclasses.replace(file, group=sys.intern(next(filter(None, match.groups()), "") if match else ""))
        for file, match in found
    ]
    without = [file.name for file in grouped if not file.group]
    if without:
        raise DatasetError(
            f"data.group={pattern!r} finds no group in {len(without)} of {len(files)} paths of folder {root}, the "
            f"first is {without[0]!r}"
        )
    return grouped


def _split_folders(root: Path) -> list[tuple[str, Path]]:
    """`(split, folder of class folders)`; all is `train` unless a folder that is called as a split has sub-folders."""
    folders = _sub_folders(root)
    first = next((folder.name for folder in folders if split_called(folder.name) and _sub_folders(folder)), None)
    if first is None:
        return [("train", root)]
    splits: dict[str, Path] = {}
    for folder in folders:
        split, name = split_called(folder.name), folder.name
        if split is None:
            raise DatasetError(
                f"folder {root} has {name!r} beside {first!r}: beside a split only {SPLIT_ALLOWED} are allowed"
            )
        if split in splits:
            raise DatasetError(f"folder {root} has {splits[split].name!r} and {name!r}: only one of them is allowed")
        splits[split] = folder
    return sorted(splits.items())


def _sub_folders(folder: Path) -> list[Path]:
    try:
        folders = sorted(path for path in _entries(folder) if path.is_dir())
    except OSError as error:  # a link into a folder that may not be looked into
        raise DatasetError(f"cannot read {error.filename}: {error.strerror}") from error
    for path in folders:
        _refuse_link(path)
    return folders


def _entries(folder: Path) -> list[Path]:
    """What lies directly in it, hidden things apart."""
    try:
        return [path for path in folder.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        _refuse_unlisted(error)


def walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """`os.walk` in the order of the paths, hidden things apart; it stops at a folder that cannot be listed."""
    for parent, folders, names in os.walk(folder, onerror=_refuse_unlisted):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield parent, folders, sorted(name for name in names if not name.startswith("."))


def _refuse_unlisted(error: OSError) -> NoReturn:
    raise DatasetError(f"cannot read the folder {error.filename}: {error.strerror}") from error


def _refuse_link(folder: Path) -> None:
    if folder.is_symlink():
        raise DatasetError(f"{folder} is a link: links to folders are not followed, put the folder itself there")


def _walk(folder: Path) -> Iterator[str]:
    """The paths of all files below; as texts: a `Path` takes three times as long."""
    for parent, folders, names in walk(folder):
        for name in folders:
            _refuse_link(Path(parent, name))
        yield from (os.path.join(parent, name) for name in names)


def _stat(path: str, boundary: Boundary) -> os.stat_result:
    try:
        return boundary.stat(path)
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error


def _image_file(path: str, stat: os.stat_result, prefix: str, *, split: str, class_name: str) -> ImageFile:
    return ImageFile(
        split=split,
        class_name=sys.intern(_printable(class_name)),  # one text for all of a class
        name=_printable(path.removeprefix(prefix)),
        path=path,
        size_bytes=stat.st_size,
        modified_nanoseconds=stat.st_mtime_ns,
    )


def _printable(name: str) -> str:
    """A file name may hold bytes that are no text, and control characters; reports hold only text."""
    return name if name.isprintable() else escape_controls(os.fsencode(name).decode(errors="replace"))
