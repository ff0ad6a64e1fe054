"""What TFDS downloads and prepares of a set: the splits that are used, with lines that say how far it is.

TFDS has no setting for either: a set says what it needs in `_split_generators`, which here sees a download manager
that leaves out what is named as a split of no use. SVHN's `extra` is 1.3 of its 1.6 GB.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rampline.data.sources.image_files import split_called
from rampline.data.sources.source import Tell
from rampline.record.units import write_bytes

TELL_SECONDS = 10.0


def keep_to_used_splits(builder: Any, name: str, tell: Tell) -> None:
    """Let `builder` download and prepare only the splits that `split_called` knows, and tell how far it is.

    Args:
        builder: of a set that is not prepared yet.
        name: of the set, to be told.
        tell: is called with lines for the user, also by a thread.
    """
    make: Callable[..., Any] = builder._split_generators

    @functools.wraps(make)  # TFDS looks at its parameters
    def make_used(manager: Any, **named: Any) -> Any:
        downloads = _Downloads(manager, builder.url_infos or {}, name, tell)
        try:
            made = make(downloads, **named)
        except Exception:
            # What was left out may be read at once. An error of another kind comes again.
            if not downloads.left_out:
                raise
            made = None
        if made is None or not downloads.left_out <= set(_names(made)):
            # It was no split, such as a table for all of them.
            downloads.is_complete = True
            made = make(downloads, **named)
        unused = [split for split in _names(made) if not split_called(split)]
        if len(unused) == len(_names(made)):
            return made
        for split in unused:
            how = "neither downloaded nor prepared" if split in downloads.left_out else "not prepared"
            tell(f"tfds:{name}: the split {split!r} is left out, {how}: only train, validation and test are used")
        if isinstance(made, Mapping):
            return {split: examples for split, examples in made.items() if split not in unused}
        return [split for split in made if str(split.name) not in unused]

    builder._split_generators = make_used


def _names(made: Any) -> list[str]:
    """Of splits as sets make them: by name, or in the older form a list."""
    return [str(split) for split in made] if isinstance(made, Mapping) else [str(split.name) for split in made]


class _Downloads:
    """TFDS' download manager; of addresses by split it takes those that are used, unless `is_complete`."""

    def __init__(self, manager: Any, url_infos: Mapping[str, Any], name: str, tell: Tell) -> None:
        self._manager, self._url_infos, self._name, self._tell = manager, url_infos, name, tell
        self.is_complete = False
        self.left_out: set[str] = set()

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._manager, attribute)

    def download(self, urls: Any) -> Any:
        return self._load(self._manager.download, urls)

    def download_and_extract(self, urls: Any) -> Any:
        return self._load(self._manager.download_and_extract, urls)

    def _load(self, load: Callable[[Any], Any], urls: Any) -> Any:
        unused: set[Any] = set()
        if isinstance(urls, Mapping) and "train" in map(split_called, map(str, urls)) and not self.is_complete:
            unused = {key for key in urls if not split_called(str(key))}
            self.left_out |= {str(key) for key in unused}
        wanted = {key: url for key, url in urls.items() if key not in unused} if unused else urls
        with self._told(list(_flatten(wanted))):
            loaded = load(wanted)
        # A set asks for each of its files by the key, also for one that is of no use.
        nothing = {key: Path(self._manager.download_dir, f"left-out-{key}") for key in unused}
        return {**loaded, **nothing} if unused else loaded

    @contextmanager
    def _told(self, urls: list[str]) -> Iterator[None]:
        """The size first, then how far it is, by what grows in the folder of downloads."""
        folder = Path(self._manager.download_dir)
        known = [self._url_infos[url] for url in urls if url in self._url_infos]
        before, done, files = _size(folder), threading.Event(), "1 file" if len(urls) == 1 else f"{len(urls)} files"
        size = write_bytes(sum(int(info.size) for info in known)) if len(known) == len(urls) else "unknown size"
        checked = "" if len(known) == len(urls) else f"; TFDS has checksums of {len(known)} of them"
        self._tell(f"tfds:{self._name}: {files} of {size}, downloaded unless they are there{checked}")

        def watch() -> None:
            while not done.wait(TELL_SECONDS):
                grown = _size(folder) - before
                if grown > 0:
                    self._tell(f"tfds:{self._name}: downloaded {write_bytes(grown)} of {size}")

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _flatten(urls: Any) -> Iterator[str]:
    if isinstance(urls, Mapping):
        urls = list(urls.values())
    if isinstance(urls, list | tuple):
        for inner in urls:
            yield from _flatten(inner)
    else:
        yield str(getattr(urls, "url", urls))


def _size(folder: Path) -> int:
    """Bytes of all files below, those that are being renamed apart."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return size
