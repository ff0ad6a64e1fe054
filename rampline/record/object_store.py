"""`RAMPLINE_STORE`: an object store, or a folder, for what must outlive the machine.

An object store cannot rename. What makes a folder complete in it is one object that is written last, its manifest: the
size and the SHA-256 of every file, which are checked when it is fetched.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from rampline.credentials import check_no_credentials, first_line
from rampline.errors import ConfigError, InputError, RamplineError
from rampline.files import complete_directory, write_text

if TYPE_CHECKING:
    from pyarrow import NativeFile
    from pyarrow.fs import FileSystem

VARIABLE = "RAMPLINE_STORE"
ALLOWED = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, or an absolute path"
# Files under way at once: a small one waits for the network most of its time.
STREAMS = 8
BLOCK_BYTES = 4 * 2**20
# Seconds without an answer or a byte, after which a request counts as lost; it is tried three times more.
CONNECT_SECONDS, SILENT_SECONDS = 5, 5
# Google's library would try for 15 minutes, also without a right to the bucket.
GS_SECONDS = 20

# Whether the `at_once` that a thread works for is over.
_STREAM = threading.local()

Item = TypeVar("Item")
Result = TypeVar("Result")


class StoreDamaged(RamplineError):
    """What the store holds is not what was put there."""


@dataclass(frozen=True)
class ObjectStore:
    """Files by their keys, such as `data/digits-0123/manifest.json`.

    Whatever a method is asked to do, the network, the server or a wrong setting may make it an `OSError`.

    Attributes:
        url: as it was given.
        files: pyarrow's, with the prefix as its root.
    """

    url: str
    files: FileSystem

    @classmethod
    def from_environment(cls) -> ObjectStore | None:
        """The one that `RAMPLINE_STORE` names; `None` where it is not set.

        Raises:
            InputError: when it cannot be one.
        """
        url = os.environ.get(VARIABLE)
        if not url:
            return None
        check_no_credentials(VARIABLE, url)
        try:
            return cls(url, _open(url))
        except OSError as error:
            raise InputError(f"{VARIABLE}={url} cannot be used: {first_line(error)}") from error

    def check(self) -> None:
        """Write an object and delete it.

        Raises:
            InputError: when that cannot be done.
        """
        try:
            self.write_json(".check", {})
            self.delete(".check")
        except OSError as error:
            raise InputError(f"{VARIABLE}={self.url} cannot be written to: {first_line(error)}") from error

    def names(self, key: str) -> list[str]:
        """What lies directly below a key, sorted; nothing where there is nothing."""
        from pyarrow.fs import FileSelector

        return sorted(info.base_name for info in self.files.get_file_info(FileSelector(key, allow_not_found=True)))

    def read_json(self, key: str) -> Any:
        """The value of a JSON object; `None` where there is none.

        Raises:
            StoreDamaged: when it is no JSON.
        """
        try:
            with self._reading(key) as stream:
                return json.loads(stream.read())
        except FileNotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise StoreDamaged(f"{self.url}/{key} is not what was put there: {error}") from error

    def write_json(self, key: str, value: Any) -> None:
        """Put a JSON object there, complete or not at all."""
        text = json.dumps(value, indent=1) + "\n"
        if self._folder:
            write_text(self._folder / key, text)
        else:
            with self.files.open_output_stream(key, compression=None) as stream:
                stream.write(text.encode())

    def put_file(self, key: str, file: BinaryIO) -> dict[str, Any]:
        """Put there what is in a file; returns how it is described in a manifest."""
        digest, size = hashlib.sha256(), 0
        if self._folder:
            (self._folder / key).parent.mkdir(parents=True, exist_ok=True)
        with self.files.open_output_stream(key, compression=None) as stream:
            for block in _blocks(file.read):
                stream.write(block)
                digest.update(block)
                size += len(block)
        return {"bytes": size, "sha256": digest.hexdigest()}

    def fetch_file(self, key: str, path: Path, described: dict[str, Any]) -> None:
        """Write a new file with what is there.

        Raises:
            StoreDamaged: when it is not what was described; the file has what was found.
        """
        digest, size = hashlib.sha256(), 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._reading(key) as stream, path.open("xb") as file:
            for block in _blocks(stream.read):
                file.write(block)
                digest.update(block)
                size += len(block)
        if (size, digest.hexdigest()) != (described["bytes"], described["sha256"]):
            raise StoreDamaged(f"{self.url}/{key} is not what was put there")

    def delete(self, *keys: str) -> None:
        """Delete files; those that are not there are deleted already."""
        for key in keys:
            with suppress(FileNotFoundError):
                self.files.delete_file(key)

    def delete_folder(self, key: str) -> None:
        """Delete all that is below a key."""
        with suppress(FileNotFoundError):
            self.files.delete_dir(key)

    def put_folder(self, key: str, folder: Path) -> bool:
        """Put a folder there whose content never changes; whether it was not there yet."""
        if self.read_json(f"{key}.json") is not None:
            return False
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

        def put(name: str) -> dict[str, Any]:
            with open(folder / name, "rb") as file:
                return self.put_file(f"{key}/{name}", file)

        self.write_json(f"{key}.json", {"files": dict(zip(names, at_once(put, names), strict=True))})
        return True

    def fetch_folder(self, key: str, folder: Path) -> bool:
        """Make a folder of what is there, complete or absent; whether there was anything complete.

        Raises:
            StoreDamaged: when it is not what was put there; it counts as absent from then on.
        """
        try:
            manifest = self.read_json(f"{key}.json")
            if manifest is None:
                return False
            files = manifest["files"]
            with complete_directory(folder) as aside:
                at_once(lambda name: self.fetch_file(f"{key}/{name}", inside(aside, name), files[name]), files)
        except (FileNotFoundError, StoreDamaged) as error:
            self.delete(f"{key}.json")
            raise StoreDamaged(f"{self.url}/{key} is not what was put there: {first_line(error)}") from error
        return True

    @contextmanager
    def _reading(self, key: str) -> Iterator[NativeFile]:
        """What is there, or `FileNotFoundError`, also where it is deleted between being found and being read."""
        try:
            with self.files.open_input_stream(key, compression=None) as stream:
                yield stream
        except OSError as error:
            if not self.files.get_file_info(key).is_file:
                raise FileNotFoundError(f"{self.url}/{key} is not there") from error
            raise

    @property
    def _folder(self) -> Path | None:
        """Where it is a folder of this machine; a file that is written anew there needs care, an object does not."""
        return Path(self.url).expanduser() if "://" not in self.url else None


def at_once(
    work: Callable[[Item], Result], items: Iterable[Item], is_given_up: Callable[[], bool] = lambda: False
) -> list[Result]:
    """`work` of every item, of `STREAMS` at a time; the results in the order of the items.

    Files that are under way when one fails, when the call is interrupted or given up, end with the block they are at.
    """
    is_over = threading.Event()

    def begin(item: Item) -> Result:
        _STREAM.is_over = lambda: is_over.is_set() or is_given_up()
        _check_over()
        return work(item)

    with ThreadPoolExecutor(STREAMS) as pool:
        try:
            return list(pool.map(begin, items))
        except BaseException:
            is_over.set()  # large files may take minutes, which Ctrl-C would wait for
            raise


def _blocks(read: Callable[[int], bytes]) -> Iterator[bytes]:
    while block := read(BLOCK_BYTES):
        _check_over()
        yield block


def _check_over() -> None:
    if (is_over := getattr(_STREAM, "is_over", None)) and is_over():
        raise InterruptedError("the transfer was given up")


def inside(folder: Path, name: str) -> Path:
    """The path of a name that a manifest gives.

    Raises:
        StoreDamaged: when it leads out of the folder.
    """
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise StoreDamaged(f"{name} is outside of {folder}")
    return path


def _open(url: str) -> FileSystem:
    scheme, mark, place = url.partition("://")
    path = Path(url).expanduser()
    if not (place.strip("/") if mark else path.is_absolute()):
        raise ConfigError(f"{VARIABLE}={url} is not allowed: it must be {ALLOWED}")
    from pyarrow import fs  # most of a second, for those alone who have a store

    if not mark:
        return fs.SubTreeFileSystem(str(path), fs.LocalFileSystem())
    gs = {"retry_time_limit": timedelta(seconds=GS_SECONDS)}
    makers = {"s3": _open_s3, "gs": lambda bucket: fs.GcsFileSystem(**gs), "az": _open_azure}
    if scheme not in makers:
        raise ConfigError(f"{VARIABLE}={url} is not allowed: it must be {ALLOWED}")
    return fs.SubTreeFileSystem(place.strip("/"), makers[scheme](place.strip("/").partition("/")[0]))


def _open_s3(bucket: str) -> FileSystem:
    from pyarrow import fs

    # pyarrow reads neither by itself.
    endpoint = urlsplit(os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or "")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    where = {"endpoint_override": endpoint.netloc, "scheme": endpoint.scheme} if endpoint.netloc else {}
    return fs.S3FileSystem(
        **where,
        region=region or ("us-east-1" if where else fs.resolve_s3_region(bucket)),
        connect_timeout=CONNECT_SECONDS,
        request_timeout=SILENT_SECONDS,
        # One request for a small file, not three.
        allow_delayed_open=True,
    )


def _open_azure(container: str) -> FileSystem:
    from pyarrow import fs

    account = os.environ.get("AZURE_STORAGE_ACCOUNT")
    if not account:
        raise ConfigError(f"{VARIABLE}=az://{container}/… needs AZURE_STORAGE_ACCOUNT, the name of the account")
    return fs.AzureFileSystem(account, account_key=os.environ.get("AZURE_STORAGE_KEY"))
