"""`tfds:NAME`: any image classification set of TensorFlow Datasets, downloaded or from files in `manual_dir`.

Only the splits that are used are downloaded, with lines that say how far it is. TFDS has no setting for either: a set
says what it needs in `_split_generators`, which here sees a download manager that leaves out what is named as a split
of no use. SVHN's `extra` is 1.3 of its 1.6 GB.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rampline.config import DataConfig
from rampline.credentials import first_line
from rampline.data.sources.image_files import split_called
from rampline.data.sources.source import Example, Source, SourceSplit, Tell
from rampline.errors import DatasetError, DownloadFailed
from rampline.record.units import write_bytes

_READ_BATCH = 256
_DOWNLOAD_RETRIES = 5
TELL_SECONDS = 10.0


def directory_name(config: DataConfig) -> str:
    """What the prepared directory is named after."""
    return "tfds-" + _tfds_name(config)


def stat_fingerprint(config: DataConfig, tfds_directory: Path) -> str:
    """A digest of the set's name, the version of TFDS (which fixes the set's), and what TFDS has written already."""
    _manual_dir(config)
    digest = hashlib.sha256(f"{_tfds_name(config)} {version('tensorflow-datasets')}".encode())
    for path in sorted(_set_directory(config, tfds_directory).rglob("dataset_info.json")):
        stat = path.stat()
        digest.update(f"{path.relative_to(tfds_directory)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def open_source(
    config: DataConfig, tfds_directory: Path, *, for_training: bool = True, tell: Tell | None = None
) -> Source:
    """Prepare the set with TFDS, which verifies checksums, and map its splits to ours; others are left out.

    Raises:
        DatasetError: on an unknown name, a set that is no image classification, missing or wrong files, or no network
            (`DownloadFailed`).
    """
    name = _tfds_name(config)
    builder = _make_builder(name, tfds_directory)
    image, label = _image_and_label(name, builder.info)
    keep_to_used_splits(builder, name, tell or (lambda _: None))
    _download_and_prepare(config, builder, tfds_directory)
    fingerprint = stat_fingerprint(config, tfds_directory)
    return _make_source(name, builder, image, label, fingerprint, for_training=for_training)


def _tfds_name(config: DataConfig) -> str:
    return config.source.partition(":")[2]


def _make_builder(name: str, tfds_directory: Path) -> Any:
    # Imported here because the flow process asks for the fingerprint and must not load TensorFlow.
    import tensorflow_datasets as tfds

    tfds.disable_progress_bar()
    try:
        return tfds.builder(name, data_dir=tfds_directory)
    except tfds.core.DatasetNotFoundError as error:
        near = difflib.get_close_matches(name, tfds.list_builders(with_community_datasets=False), n=1)
        hint = f": did you mean tfds:{near[0]}?" if near else ""
        raise DatasetError(
            f"tfds:{name} is not known: TensorFlow Datasets {tfds.__version__} has no such set{hint}"
        ) from error
    except (ValueError, KeyError, AssertionError, ImportError) as error:
        raise DatasetError(f"tfds:{name} cannot be opened: {first_line(error)}") from error


def _image_and_label(name: str, info: Any) -> tuple[str, str]:
    """The keys of the image and of its class: those that the set is supervised by, else the only ones there are."""
    import tensorflow_datasets as tfds

    features: Any = info.features if isinstance(info.features, tfds.features.FeaturesDict) else {}
    supervised = info.supervised_keys or ()
    images = [key for key, feature in features.items() if isinstance(feature, tfds.features.Image)]
    labels = [key for key, feature in features.items() if isinstance(feature, tfds.features.ClassLabel)]
    if len(supervised) == 2 and supervised[0] in images and supervised[1] in labels:
        image, label = supervised
    elif len(images) == 1 and len(labels) == 1:
        image, label = images[0], labels[0]
    else:
        held = ", ".join(f"{key} ({type(feature).__name__})" for key, feature in features.items())
        raise DatasetError(
            f"tfds:{name} is no image classification set: one image and one class label are needed, it has {held}"
        )
    if np.dtype(features[image].np_dtype) != np.uint8 or (features[image].shape[-1] or 3) not in (1, 3, 4):
        raise DatasetError(f"tfds:{name} has images of {features[image]}: uint8 with 1, 3 or 4 channels is needed")
    return image, label


def _download_and_prepare(config: DataConfig, builder: Any, tfds_directory: Path) -> None:
    import tensorflow as tf
    from tensorflow_datasets.core.download import DownloadConfig, downloader
    from tensorflow_datasets.core.download.download_manager import NonMatchingChecksumError
    from tensorflow_datasets.core.download.util import DownloadError

    # TFDS's own ten take minutes to find out that there is no network.
    downloader.MAX_RETRIES = _DOWNLOAD_RETRIES
    # TFDS takes an archive for unpacked where one of its name was, whatever set that came from: MNIST and Fashion-MNIST
    # have files of the same names.
    unpacked = tfds_directory / "extracted" / _set_directory(config, tfds_directory).name
    shutil.rmtree(unpacked, ignore_errors=True)
    download = DownloadConfig(manual_dir=_manual_dir(config), extract_dir=unpacked, try_download_gcs=False)
    _remove_leftovers(config, tfds_directory)
    try:
        builder.download_and_prepare(download_config=download)
    except (NonMatchingChecksumError, AssertionError) as error:
        raise DatasetError(f"{config.source}: {first_line(error)}") from error
    except (OSError, DownloadError, tf.errors.OpError) as error:
        kind = DownloadFailed if isinstance(error, downloader.requests.RequestException) else DatasetError
        raise kind(f"{config.source} cannot be prepared: {_how_to_get(error, builder)}") from error
    finally:
        _remove_leftovers(config, tfds_directory)


def _manual_dir(config: DataConfig) -> Path | None:
    if config.manual_dir is None:
        return None
    folder = Path(os.path.expanduser(config.manual_dir)).absolute()
    if not os.path.isdir(folder):
        raise DatasetError(
            f"data.manual_dir={str(folder)!r} does not exist: it must hold the files that TFDS would download"
        )
    return folder


def _remove_leftovers(config: DataConfig, tfds_directory: Path) -> None:
    """What an interrupted TFDS has left; the caller holds the lock."""
    folder = _set_directory(config, tfds_directory)
    unfinished = list(folder.rglob("*incomplete*")) + list((tfds_directory / "downloads" / folder.name).glob("*.tmp.*"))
    for path in unfinished:
        shutil.rmtree(path, ignore_errors=True)


def _set_directory(config: DataConfig, tfds_directory: Path) -> Path:
    """Where TFDS keeps the set, all versions and configurations of it: `NAME/CONFIG:VERSION` is in `NAME`."""
    return tfds_directory / re.split("[/:]", _tfds_name(config))[0]


def _how_to_get(error: Exception, builder: Any) -> str:
    url = getattr(getattr(error, "request", None), "url", None)
    if url is None:
        return first_line(error)
    known = (builder.url_infos or {}).get(url)
    file = known.filename if known and known.filename else "the file"
    return f"{url} does not answer; without a network, put {file} into a folder and set data.manual_dir to it"


def _make_source(name: str, builder: Any, image: str, label: str, fingerprint: str, *, for_training: bool) -> Source:
    splits: dict[str, SourceSplit] = {}
    notes: list[str] = []
    for tfds_split, info in builder.info.splits.items():
        split = split_called(tfds_split)
        if split is None or split in splits or _is_unlabelled(builder, tfds_split, label):
            reason = "only train, validation and test are used"
            if split is not None:
                reason = f"there is another for {split}" if split in splits else "it has no labels"
            notes.append(f"tfds:{name}: the split {tfds_split!r} is left out: {reason}")
            continue
        splits[split] = SourceSplit(
            examples=info.num_examples, iterate=partial(_iterate, builder, tfds_split, image, label)
        )
    if "train" not in splits and for_training:
        raise DatasetError(f"tfds:{name} has no train split: it has {', '.join(builder.info.splits)}")
    features = builder.info.features
    return Source(
        class_names=tuple(features[label].names),
        channels=1 if features[image].shape[-1] == 1 else 3,
        splits=splits,
        stat_fingerprint=fingerprint,
        notes=tuple(notes),
    )


def _is_unlabelled(builder: Any, tfds_split: str, label: str) -> bool:
    """TFDS marks examples whose class is not published by the label -1."""
    return any(example[label] < 0 for example in builder.as_dataset(split=f"{tfds_split}[:1]").as_numpy_iterator())


def _iterate(builder: Any, tfds_split: str, image: str, label: str) -> Iterator[Example]:
    """Examples in the order of TFDS's files, still encoded."""
    import tensorflow_datasets as tfds

    encoded = tfds.decode.PartialDecoding({image: True, label: True}, decoders={image: tfds.decode.SkipDecoding()})
    dataset = builder.as_dataset(split=tfds_split, decoders=encoded, read_config=tfds.ReadConfig(add_tfds_id=True))
    # Batches, because one step of a TensorFlow iterator costs more than reading a small image.
    for batch in dataset.batch(_READ_BATCH).as_numpy_iterator():
        for name, number, content in zip(batch["tfds_id"], batch[label], batch[image], strict=True):
            if number < 0:
                raise DatasetError(f"tfds split {tfds_split!r} has examples without a label, such as {name.decode()}")
            yield Example(name=name.decode(), label=int(number), read=partial(bytes, content))


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
        import tensorflow as tf

        unused: set[Any] = set()
        if isinstance(urls, Mapping) and "train" in map(split_called, map(str, urls)) and not self.is_complete:
            unused = {key for key in urls if not split_called(str(key))}
            self.left_out |= {str(key) for key in unused}
        wanted = {key: url for key, url in urls.items() if key not in unused} if unused else urls
        with self._told([str(getattr(url, "url", url)) for url in tf.nest.flatten(wanted)]):
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


def _size(folder: Path) -> int:
    """Bytes of all files below, those that are being renamed apart."""
    size = 0
    for path in folder.rglob("*"):
        try:
            size += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return size
