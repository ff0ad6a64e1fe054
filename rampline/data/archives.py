"""Unpacking .zip and .tar archives that somebody else made: nothing is written outside, or it is refused."""

from __future__ import annotations

import functools
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Self

from rampline.data.address import UNFINISHED
from rampline.errors import DatasetError
from rampline.files import complete_directory, delete_unfinished, sha256_of

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
# What must be left free on the disk, and what a file takes there at least: a million empty ones fill it too.
KEPT_FREE_SHARE = 0.1
BYTES_PER_FILE = 4096
# The longest path and what macOS keeps of a file fit; Python reads all of a header into memory, and it may claim more.
LONGEST_HEADER_BYTES = 2**18
_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
_EXTENDED_AT = 482  # of a GNU sparse header: whether blocks of its map follow
_IS_UTF8 = 0x800  # in the flags of a zip entry: its name is UTF-8
# What macOS adds to archives.
_IGNORED = "__MACOSX"
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    OSError,
    ValueError,
    RuntimeError,
)


_SPARSE = "a sparse file, whose map may fill the memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """A file of an archive; `size` is what the archive claims, and at most that much is read."""

    name: str
    size: int
    open: Callable[[], IO[bytes]]


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive which `unpack` reads."""
    return path.name.lower().endswith(SUFFIXES)


def stem(path: Path) -> str:
    """The name of an archive without the suffix."""
    return next(path.name[: -len(suffix)] for suffix in SUFFIXES if path.name.lower().endswith(suffix))


def unpack_once(archive: Path, parent: Path) -> Path:
    """The folder below `parent` that holds the archive's content; it is unpacked if it was not before.

    The caller makes sure that only one process does this at a time: what a killed one has left is removed.

    Raises:
        DatasetError: see `unpack`; nothing is left then.
    """
    try:
        key = sha256_of(archive)[:16]
    except OSError as error:
        raise DatasetError(f"{archive} cannot be read: {error.strerror}") from error
    directory = parent / f"{stem(archive)}-{key}"
    if not directory.is_dir():
        delete_unfinished(parent, UNFINISHED)
        with complete_directory(directory) as aside:
            unpack(archive, aside)
    return directory


def unpack(archive: Path, directory: Path) -> None:
    """Unpack the files of `archive` into the empty `directory`: content alone, no permissions, owners or times.

    Args:
        archive: a zip, or a tar with any compression that Python reads.
        directory: an empty folder that nobody else writes to.

    Raises:
        DatasetError: when it is damaged, holds headers that would fill the memory, a link, a device, an absolute path
            or one with `..`, a file twice, or more than fits on 90 % of the free disk. What was unpacked until then is
            left for the caller to remove.
    """
    left = int(shutil.disk_usage(directory).free * (1 - KEPT_FREE_SHARE))
    try:
        for member in _zip_members(archive) if archive.suffix.lower() == ".zip" else _tar_members(archive):
            path = directory / _safe_name(archive, member.name)
            left -= max(member.size, BYTES_PER_FILE)
            if left < 0:
                raise DatasetError(f"{archive} unpacks to more than fits on the disk of {directory.parent}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as content, path.open("xb") as file:
                shutil.copyfileobj(content, file)
    except FileExistsError as error:
        raise DatasetError(f"{archive} holds {str(error.filename)!r} twice, as a file and again") from error
    except _BROKEN as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DatasetError(f"{archive} cannot be unpacked: {reason}") from error


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            name, kind = _zip_name(info), stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refusal(archive, name, "is a link or a device")
            if name.endswith(("/", "\\")):
                _safe_name(archive, name)
            elif not name.startswith(_IGNORED):
                yield _Member(name=name, size=info.file_size, open=lambda info=info: opened.open(info))


def _zip_name(info: zipfile.ZipInfo) -> str:
    """The name of an entry; macOS writes UTF-8 without the flag that says so, and Python then reads it as cp437."""
    if not info.flag_bits & _IS_UTF8:
        with suppress(UnicodeError):
            return info.filename.encode("cp437").decode()
    return info.filename


class _TarInfo(tarfile.TarInfo):
    """An entry whose headers fit into memory; `ValueError` for another."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """One block of 512 bytes, before Python reads what belongs to it."""
        info = super().frombuf(buf, encoding, errors)
        if info.type in _HEADERS and info.size > LONGEST_HEADER_BYTES:
            raise ValueError(f"a header of {info.size} bytes; it may have {LONGEST_HEADER_BYTES}")
        if info.type == tarfile.GNUTYPE_SPARSE and buf[_EXTENDED_AT]:
            raise ValueError(_SPARSE)
        return info

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise ValueError(_SPARSE)


def _tar_members(archive: Path) -> Iterator[_Member]:
    with tarfile.open(archive, tarinfo=_TarInfo) as opened:
        while info := opened.next():
            opened.members.clear()  # type: ignore[attr-defined] - all entries until then, of no use
            if sum(map(len, opened.pax_headers.values())) > LONGEST_HEADER_BYTES:
                raise ValueError(f"headers for all files of more than {LONGEST_HEADER_BYTES} bytes")
            if info.isdir():
                _safe_name(archive, info.name)
            elif not info.isfile():
                raise _refusal(archive, info.name, "is a link or a device")
            elif not info.name.startswith(_IGNORED):
                content: Any = functools.partial(opened.extractfile, info)  # of a file it is not None
                yield _Member(name=info.name, size=info.size, open=content)


def _safe_name(archive: Path, name: str) -> PurePosixPath:
    """The name as a path that stays below where it is put; a backslash counts as a slash, as on Windows."""
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or "\0" in name or name[1:2] == ":":
        raise _refusal(archive, name, "leads outside")
    return parts


def _refusal(archive: Path, name: str, what: str) -> DatasetError:
    return DatasetError(
        f"{archive} is not unpacked: its entry {name[:200]!r} {what}; only files and folders may be in it"
    )


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
