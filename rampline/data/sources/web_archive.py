"""`url:URL`: a .zip or .tar archive on the web, downloaded once; its content is read as `folder:ARCHIVE`.

The size of a download is told first, what breaks off goes on, and the file is complete or absent. HTTP alone, also
behind a redirect: an address must not make a file of this machine part of a dataset.
"""

from __future__ import annotations

import dataclasses
import hashlib
import netrc
import os
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import httpx

from rampline.config import DataConfig
from rampline.credentials import hide_credentials
from rampline.data.archives import KEPT_FREE_SHARE, SUFFIXES, is_archive, stem
from rampline.data.sources.folder import open_archive
from rampline.data.sources.source import Source, Tell
from rampline.errors import NOT_ALLOWED, DatasetError, DownloadFailed, says_disk_full
from rampline.files import make_directory, read_json, sha256_of, write_json
from rampline.record.units import write_bytes

SECURE, PLAIN = "https", "http"
# In a row, none of which has brought a byte.
ATTEMPTS = 5
PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
# Of an answer, and of each block of it.
TIMEOUT_SECONDS = 60.0
TELL_SECONDS = 10.0
# Of the answers that say no, those after which another try may help.
_PASSING = (408, 425, 429)


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
    try:
        source = open_archive(archive, config.group, tfds_directory, for_training=for_training)
    except DatasetError as error:
        if checksum:
            raise
        # A server may give a page in place of the archive: it stays, and every later command would fail alike.
        raise DatasetError(f"{error}; remove {archive} to have it downloaded again") from error
    return dataclasses.replace(source, stat_fingerprint=stat_fingerprint(config, tfds_directory))


def _url(config: DataConfig) -> str:
    url = config.source.partition(":")[2]
    _check(url)
    if not is_archive(Path(_file_name(url))):
        raise DatasetError(f"data.source=url:{url} is not allowed: its path must end in {', '.join(SUFFIXES)}")
    return url


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in (SECURE, PLAIN) and parts.hostname and parts.port != 0
    except ValueError:  # a bracket that is not closed, or a port above 65535
        is_good = False
    if not is_good:
        raise DatasetError(f"{url} is not allowed: it must be an address that begins with https:// or http://")


def _file_name(url: str) -> str:
    return PurePosixPath(unquote(urlsplit(url).path)).name


def _archive(config: DataConfig, tfds_directory: Path) -> Path:
    """Where the archive is kept."""
    url = _url(config)
    key = hashlib.sha256(url.encode()).hexdigest()[:16]
    return tfds_directory.parent / "downloads" / key / _file_name(url)


def download(urls: Sequence[str], path: Path, *, checksum: str | None, tell: Callable[[str], None]) -> None:
    """Have the file at `path`, from the first of `urls` that gives it; one process at a time, the others wait.

    A part that is there already is continued if the server says that the file is the same, or if the checksum will.

    Args:
        urls: addresses of the same file.
        path: where to; what is there is complete, and stays, but it must have the checksum.
        checksum: SHA-256 that the file must have, in hexadecimal; `None` takes what comes, and tells its checksum.
        tell: is called with lines for the user: the size first, then how far it is.

    Raises:
        DatasetError: when no address gives the file, in one line that names them; `DownloadFailed` when one of them did
            not answer.
    """
    if path.is_file():
        if checksum and (found := sha256_of(path)) != checksum:
            raise DatasetError(f"{path} has sha256:{found}, not data.checksum: remove it to have it downloaded again")
        return
    make_directory(path.parent)
    names = {url: f".{hashlib.sha256(url.encode()).hexdigest()[:16]}.part" for url in urls}
    parts, problems = [_Part(url=url, path=path.with_name(name)) for url, name in names.items()], []
    for part in parts:
        try:
            _load(part, is_verified=checksum is not None, tell=tell)
            _verify(part, checksum, tell)
        except _NotThere as problem:
            tell(str(problem))
            problems.append(problem)
            continue
        part.keep_as(path)
        for left in parts:
            left.drop()
        return
    kind = DownloadFailed if any(isinstance(problem, _NoAnswer) for problem in problems) else DatasetError
    raise kind(f"{path.name} cannot be downloaded: {'; '.join(map(str, problems))}")


class _NotThere(Exception):
    """An address does not give the file."""


class _NoAnswer(_NotThere):
    """It may do so later."""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What there is of a file, and beside it what the server said by which it can be told from another version."""

    url: str
    path: Path

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    @property
    def validator(self) -> str:
        return read_json(self._about)["validator"] if self._about.is_file() else ""

    @property
    def _about(self) -> Path:
        return self.path.with_suffix(".json")

    def begin(self, validator: str) -> None:
        self.drop()
        write_json(self._about, {"url": self.url, "validator": validator})

    def drop(self) -> None:
        self.path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)

    def keep_as(self, path: Path) -> None:
        with open(self.path, "rb") as file:
            os.fsync(file.fileno())
        self.path.replace(path)


def _load(part: _Part, *, is_verified: bool, tell: Callable[[str], None]) -> None:
    """Try until all of it is there, or nothing comes any more."""
    failed = 0
    while True:
        before = part.size
        try:
            return _continue(part, is_verified=is_verified, tell=tell)
        except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            if says_disk_full(error) or getattr(error, "errno", None) in NOT_ALLOWED:
                raise DatasetError(f"{part.path} cannot be written: {error}") from error
            reason = str(error) or type(error).__name__
            # A name that nobody knows is a mistake of the user's; where no server of names answers it is another error.
            # httpx has the number in its words alone.
            kind = _NotThere if f"[Errno {socket.EAI_NONAME}]" in reason else _NoAnswer
        failed = 0 if part.size > before else failed + 1
        if failed >= ATTEMPTS:
            raise kind(f"{part.url} does not answer, {ATTEMPTS} times in a row: {reason}")
        pause = min(PAUSE_SECONDS * 2**failed, LONGEST_PAUSE_SECONDS)
        tell(f"{part.host}: {reason}; trying again in {pause:.0f} s, at {write_bytes(part.size)}")
        time.sleep(pause)


def _continue(part: _Part, *, is_verified: bool, tell: Callable[[str], None]) -> None:
    """One request: all of the file, or what is missing of it."""
    # Not compressed on its way: ranges are of the file's own bytes.
    headers = {"User-Agent": f"rampline/{version('rampline')}", "Accept-Encoding": "identity"}
    size, validator = part.size, part.validator
    if size and (validator or is_verified):
        headers["Range"] = f"bytes={size}-"
        if validator:
            headers["If-Range"] = validator
    with _client(part) as client, client.stream("GET", part.url, headers=headers) as response:
        code, answered = response.status_code, response.headers.get("Content-Range", "")
        if code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and size:
            if answered != f"bytes */{size}":
                part.drop()
                raise ConnectionError("what was there is no part of the file")
            return  # it was complete, and the process died before it was renamed
        if not response.is_success:
            reason = f"{code} {response.reason_phrase}"
            if code < 500 and code not in _PASSING:
                raise _NotThere(f"{part.url} answers {reason}")
            raise ConnectionError(reason)
        is_rest = code == httpx.codes.PARTIAL_CONTENT
        if is_rest and not answered.startswith(f"bytes {size}-"):
            raise ConnectionError("another part than that which was asked for")
        if not is_rest:
            part.begin(_validator(response.headers))
        _append(part, response, size if is_rest else 0, tell)


def _client(part: _Part) -> httpx.Client:
    def refuse_redirect(response: httpx.Response) -> None:
        """One from HTTPS to HTTP, or to anything else than both."""
        if response.has_redirect_location:
            target = response.headers["Location"]
            if httpx.URL(target).scheme not in ("", SECURE, response.url.scheme):
                raise _NotThere(f"{part.url} redirects to {hide_credentials(target)}, which is refused")

    return httpx.Client(
        auth=_login(),
        follow_redirects=True,
        event_hooks={"response": [refuse_redirect]},
        timeout=TIMEOUT_SECONDS,
        verify=ssl.create_default_context(),  # the system's authorities, not certifi's
    )


def _login() -> httpx.NetRCAuth | None:
    """What `~/.netrc`, or the file that NETRC names, has for the host; another host, behind a redirect, gets none."""
    file = os.path.expanduser(os.environ.get("NETRC") or "~/.netrc")
    try:
        return httpx.NetRCAuth(file) if os.path.isfile(file) else None
    except netrc.NetrcParseError as error:  # it repeats what is wrong, which may be a password
        raise DatasetError(f"{file} cannot be read: its line {error.lineno} has another form") from None


def _validator(headers: httpx.Headers) -> str:
    """What tells this version of the file from another: a strong entity tag, else the time of its last change."""
    tag = headers.get("ETag", "")
    return headers.get("Last-Modified", "") if not tag or tag.startswith("W/") else tag


def _append(part: _Part, response: httpx.Response, start: int, tell: Callable[[str], None]) -> None:
    total = start + int(response.headers["Content-Length"]) if "Content-Length" in response.headers else None
    free = shutil.disk_usage(part.path.parent).free * (1 - KEPT_FREE_SHARE)
    words = write_bytes(total) if total is not None else "a file whose size the server does not tell"
    tell(f"downloading {words} from {part.host}" + (f", {write_bytes(start)} of it are there" if start else ""))
    with open(part.path, "ab") as file:
        done, told = start, time.monotonic()
        began = told
        try:
            for block in response.iter_raw():
                done += len(block)
                if (needed := max(total or 0, done) - start) > free:
                    needs = f"{write_bytes(needed)} and a tenth of the free disk are needed"
                    raise DatasetError(f"no room for the download: {needs}")
                file.write(block)
                if time.monotonic() - told >= TELL_SECONDS:
                    told = time.monotonic()
                    tell(_how_far(done, total, (done - start) / (told - began)))
        except httpx.RemoteProtocolError as error:
            of_all = f" of {write_bytes(total)}" if total is not None else ""
            raise ConnectionError(f"broke off at {write_bytes(done)}{of_all}") from error


def _how_far(done: int, total: int | None, bytes_per_second: float) -> str:
    share = f" of {write_bytes(total)} ({done / total:.0%})" if total else ""
    return f"downloaded {write_bytes(done)}{share}, {write_bytes(bytes_per_second)}/s"


def _verify(part: _Part, checksum: str | None, tell: Callable[[str], None]) -> None:
    found = sha256_of(part.path)
    if checksum is None:
        tell(f"not verified, as data.checksum is not set: what came from {part.host} is sha256:{found}")
    elif found != checksum:
        part.drop()
        raise _NotThere(f"{part.url} is not the file of data.checksum: it has sha256:{found}")
