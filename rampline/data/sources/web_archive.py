"""`url:URL`: a .zip or .tar archive on the web, downloaded once; its content is read as `folder:ARCHIVE`."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from rampline.config import DataConfig
from rampline.data.archives import SUFFIXES, is_archive, stem
from rampline.data.download import PLAIN, SECURE, download
from rampline.data.sources.folder import open_archive
from rampline.data.sources.source import Source, Tell
from rampline.errors import DatasetError


def directory_name(config: DataConfig) -> str:
    """What the prepared directory is named after."""
    return stem(Path(_file_name(_url(config))))


def stat_fingerprint(config: DataConfig, tfds_directory: Path) -> str:
    """A digest of the address and of what is downloaded; of the address and the checksum, where there is one."""
    digest = hashlib.sha256(f"{_url(config)} {config.checksum}".encode())
    archive = _archive(config, tfds_directory)
    if config.checksum is None and archive.is_file():
        stat = archive.stat()
        digest.update(f"{stat.st_size} {stat.st_mtime_ns}".encode())
    return digest.hexdigest()


def open_source(config: DataConfig, tfds_directory: Path, *, for_training: bool = True, tell: Tell) -> Source:
    """Download the archive unless it is there, verify it, and read it as a folder.

    Raises:
        DatasetError: when no address gives it, it has another checksum, or its content is refused, see `open_archive`.
    """
    archive = _archive(config, tfds_directory)
    checksum = config.checksum.partition(":")[2].lower() if config.checksum else None
    urls = (_url(config), *config.mirrors)
    for url in urls:
        _check(url)
    download(urls, archive, checksum=checksum, tell=tell)
    source = open_archive(archive, config.group, tfds_directory, for_training=for_training)
    return dataclasses.replace(source, stat_fingerprint=stat_fingerprint(config, tfds_directory))


def _url(config: DataConfig) -> str:
    url = config.source.partition(":")[2]
    _check(url)
    if not is_archive(Path(_file_name(url))):
        raise DatasetError(f"data.source=url:{url} is not allowed: its path must end in {', '.join(SUFFIXES)}")
    return url


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in (SECURE, PLAIN) or not parts.hostname:
        raise DatasetError(f"{url} is not allowed: it must be an address that begins with https:// or http://")


def _file_name(url: str) -> str:
    return PurePosixPath(unquote(urlsplit(url).path)).name


def _archive(config: DataConfig, tfds_directory: Path) -> Path:
    """Where the archive is kept."""
    url = _url(config)
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    return tfds_directory.parent / "downloads" / key / _file_name(url)
