"""The work of the preparation process: find the dataset prepared, or read its source and store it."""

from __future__ import annotations

import hashlib
import math
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd

from rampline.config import DataConfig
from rampline.data.address import (
    UNFINISHED,
    dataset_directory,
    describe_preprocessing,
    index_entry,
    look_up,
    tfds_directory,
)
from rampline.data.catalog import CatalogEntry, fingerprint_catalog, read_catalog, select
from rampline.data.dataset import FORMAT_VERSION, SPLITS, split_file
from rampline.data.decoder import DecodedImage, Decoder, compute_in_one_thread
from rampline.data.integrity import seal
from rampline.data.orientation import UPRIGHT
from rampline.data.parallel import CAN_FORK, MapInOrder, in_chunks, map_in_order, worker_processes
from rampline.data.preparation import check_undecodable_share, open_prepared
from rampline.data.quality import ReportRow, make_report, read_report, write_report
from rampline.data.sources import place_of, source_module
from rampline.data.sources.source import Example, Source, as_test_images
from rampline.data.storage import Content, SplitWriter, stored_content
from rampline.data.stored_dataset import fetch_dataset
from rampline.devices import available_cores
from rampline.errors import DatasetError
from rampline.files import complete_directory, delete_unfinished, locked, sha256_of, write_csv, write_json
from rampline.jobs.job import EVENTS
from rampline.jobs.memory import available_bytes
from rampline.record.events import EventWriter
from rampline.record.home import Home

# Enough to pay for a call into TensorFlow, few enough to hold that many photographs per core.
_CHUNK = 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be stored: each example of the catalog in its split of `splits`, `""` for none."""

    config: DataConfig
    source: Source
    catalog: Sequence[CatalogEntry]
    splits: Sequence[str]
    fingerprint: str
    preprocessing: dict[str, Any]
    map_in_order: MapInOrder

    @property
    def chosen(self) -> Iterator[tuple[str, CatalogEntry]]:
        """The examples that are stored, each with its split."""
        return ((split, entry) for split, entry in zip(self.splits, self.catalog, strict=True) if split)


# An image without its pixels, and what is stored of it; none where it does not decode.
Stored: TypeAlias = tuple[DecodedImage, Content | None]


def fill(directory: Path, plan: Plan, on_progress: Callable[[int, int], None]) -> None:
    """Write everything that a prepared dataset consists of into the empty `directory`, the manifest last.

    Raises:
        DatasetError: when too many images do not decode, or one has changed since the catalog was read.
    """
    rows, images = _write_images(directory, plan, on_progress)
    _check(plan, rows)
    for split in images:
        stored = [(row.name, row.class_name, row.group) for row in rows if row.split == split and not row.problem]
        table = pd.DataFrame(stored, columns=["path", "label", "group"])
        write_csv(split_file(directory, split), table if plan.config.group else table.drop(columns="group"))
    write_report(directory, make_report(rows, source=plan.config.source, fingerprint=plan.fingerprint))
    undecodable = sum(bool(row.problem) for row in rows)
    write_json(directory / "manifest.json", seal(_manifest(directory, plan, images, undecodable=undecodable)))


def _write_images(
    directory: Path, plan: Plan, on_progress: Callable[[int, int], None]
) -> tuple[list[ReportRow], dict[str, dict]]:
    """A row for the report of every chosen example, and what the images of each split amount to."""
    examples = sum(1 for _ in plan.chosen)
    stored_splits = [split for split in SPLITS if split in plan.splits]
    rows: list[ReportRow] = []
    with ExitStack() as stack:
        writers = {
            split: stack.enter_context(SplitWriter(directory, split, plan.preprocessing["storage"]))
            for split in stored_splits
        }
        for (split, entry), (image, content) in zip(plan.chosen, _decode_chosen(plan), strict=True):
            if content is not None:
                writers[split].append(entry.label, content, entry.orientation)
            about = (split, plan.source.class_names[entry.label], entry.label, entry.name, entry.sha256)
            rows.append(ReportRow(*about, image.width, image.height, image.problem, entry.group))
            on_progress(len(rows), examples)
    return rows, {split: writer.describe() for split, writer in writers.items()}


def _decode_chosen(plan: Plan) -> Iterator[Stored]:
    decode = partial(_decode_chunk, Decoder(tuple(plan.preprocessing["image_shape"])), plan.preprocessing["storage"])
    return chain.from_iterable(plan.map_in_order(decode, in_chunks(_iterate_chosen(plan), _CHUNK)))


def _iterate_chosen(plan: Plan) -> Iterator[tuple[Example, str]]:
    """The chosen examples in the order of the catalog, each with the sha256 that it had then."""
    examples = chain.from_iterable(split.iterate() for split in plan.source.splits.values())
    for example, split, entry in zip(examples, plan.splits, plan.catalog, strict=True):
        if split:
            yield example, entry.sha256


def _decode_chunk(decoder: Decoder, storage: str, chunk: list[tuple[Example, str]]) -> list[Stored]:
    contents = [example.read() for example, _ in chunk]
    for content, (example, sha256) in zip(contents, chunk, strict=True):
        if hashlib.sha256(content).hexdigest() != sha256:
            raise DatasetError(
                f"{example.name} changed while it was being prepared: prepare again when nothing writes there"
            )
    images = zip(contents, decoder(contents), strict=True)
    return [(replace(image, pixels=None), stored_content(storage, image.pixels, encoded)) for encoded, image in images]


def _check(plan: Plan, rows: Sequence[ReportRow]) -> None:
    broken = [f"{row.name}: {row.problem}" for row in rows if row.problem]
    first = broken[0] if broken else ""
    check_undecodable_share(plan.config, undecodable=len(broken), examples=len(rows), first=first)
    chosen = {(row.split, row.label) for row in rows}
    stored = {(row.split, row.label) for row in rows if not row.problem}
    lost = [label for split, label in sorted(chosen - stored) if split == "train"]
    if lost:
        raise DatasetError(
            f"class {plan.source.class_names[lost[0]]!r} of {plan.config.source} has no training image that decodes: "
            "one is needed"
        )
    empty = {split for split, _ in chosen} - {split for split, _ in stored}
    if empty:
        raise DatasetError(f"{plan.config.source} has no {min(empty)} image that decodes: at least one is needed")


def _manifest(directory: Path, plan: Plan, images: dict[str, dict], *, undecodable: int) -> dict[str, Any]:
    small_files = sorted(path for path in directory.iterdir() if path.suffix in (".npy", ".csv", ".json"))
    return {
        "format_version": FORMAT_VERSION,
        "source": plan.config.source,
        "place": place_of(plan.config.source),
        "fingerprint": plan.fingerprint,
        "class_names": list(plan.source.class_names),
        "image_shape": plan.preprocessing["image_shape"],
        "splits": {split: described["examples"] for split, described in images.items()},
        "undecodable": undecodable,
        "storage": plan.preprocessing["storage"],
        "preprocessing": plan.preprocessing,
        "images": images,
        "files": {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in small_files},
    }


# Every role on a host holds a copy of a split, and for a moment two while it reads it: room for four roles.
MEMORY_SHARE = 1 / 8
DISK_SHARE = 1 / 4


def choose_cache(examples: int, image_shape: tuple[int, int, int], folder: Path) -> tuple[str, str]:
    """`memory`, `disk` or `none`, and why.

    All three give the same pixels in the same order. The choice is made when a dataset is prepared and kept with it:
    what is free later, or on another machine that resumes with the same home, changes nothing.

    Args:
        examples: at most so many are stored, in all splits together.
        image_shape: `(height, width, channels)` after resizing.
        folder: existing; where the dataset will lie.
    """
    size = examples * math.prod(image_shape)
    memory, disk = available_bytes(), shutil.disk_usage(folder).free
    cache = choose_by_size(size, memory=memory, disk=disk)
    gib = 2**30
    return cache, (
        f"{size / gib:.2f} GiB decoded; free are {memory / gib:.1f} GiB of memory, {disk / gib:.1f} GiB of disk"
    )


def choose_by_size(size: int, *, memory: int, disk: int) -> str:
    """`memory`, else `disk`, where the decoded images fit into their share of what is free, else `none`; in bytes."""
    if size <= MEMORY_SHARE * memory:
        return "memory"
    return "disk" if size <= DISK_SHARE * disk else "none"


# Images per core: a process first makes its own of what TensorFlow needs, a tenth of a second.
_WORTH_A_PROCESS = 100


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """Where a preparation tells how far it is: `progress(done, total)` in examples, and lines for the user."""

    progress: Callable[[int, int], None]
    log: Callable[[str], None]


def prepare(folder: Path, data: dict[str, Any], home: str, scored_classes: Sequence[str] | None) -> str:
    """The job of a preparation, see `rampline.data.preparation.prepare_dataset`: the directory of the dataset."""
    # As an exception, so that what was written aside is removed.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    events = EventWriter(folder / EVENTS)

    def progress(done: int, total: int) -> None:
        tell = partial(events.write, "progress") if done == total else events.progress
        tell(done=done, total=total)

    reporter = Reporter(progress=progress, log=lambda line: events.write("log", line=line))
    return str(store_dataset(DataConfig(**data), Home(root=Path(home)), reporter, scored_classes, may_fork=True))


def store_dataset(
    config: DataConfig,
    home: Home,
    reporter: Reporter,
    scored_classes: Sequence[str] | None = None,
    *,
    may_fork: bool = False,
) -> Path:
    """Prepare `config.source`, or find it prepared; one process at a time in a home, the others wait.

    Args:
        scored_classes: what a model was trained on that is to be scored on these images, and on nothing else: all of
            them become the test split, see `as_test_images`. Left out for data to train on.
        may_fork: let worker processes decode what consists of files, quicker than threads do; for a process that has
            run no TensorFlow operation yet. The result is the same.

    Returns:
        The prepared directory.

    Raises:
        DatasetError: when the source cannot be read or trained on; nothing is stored then.
    """
    module = source_module(config)
    with locked(home.data / ".lock", lambda _: reporter.log(f"waiting for another preparation in {home.data}")):
        fingerprint = module.stat_fingerprint(config, tfds_directory(home))
        directory = look_up(home, index_entry(home, config, fingerprint, scored_classes))
        if directory is not None:
            return _accept_present(config, directory, reporter)
        delete_unfinished(home.data, UNFINISHED)  # of preparations that were killed: the lock is ours
        reporter.log(f"preparing {config.source} in {home.data}")
        opened = {"for_training": scored_classes is None, "tell": reporter.log}
        source = module.open_source(config, tfds_directory(home), **opened)
        if scored_classes is not None:
            source = as_test_images(source, tuple(scored_classes), config.source)
        for note in source.notes:
            reporter.log(note)
        with _workers(source, may_fork=may_fork) as map_in_order:
            directory = _store_source(config, home, source, module.directory_name(config), reporter, map_in_order)
        entry = index_entry(home, config, source.stat_fingerprint, scored_classes)
        write_json(entry, {"directory": directory.name, "source": config.source})
        return directory


@contextmanager
def _workers(source: Source, *, may_fork: bool) -> Iterator[MapInOrder]:
    """Processes where they are possible and worth their start, else threads."""
    is_worth_it = source.examples >= _WORTH_A_PROCESS * available_cores() > _WORTH_A_PROCESS
    if may_fork and CAN_FORK and source.read_anywhere and is_worth_it:
        compute_in_one_thread()
        with worker_processes() as map_in_processes:
            yield map_in_processes
    else:
        yield map_in_order


def _accept_present(config: DataConfig, directory: Path, reporter: Reporter) -> Path:
    open_prepared(config, directory)
    reporter.log(f"prepared already: {directory}")
    return directory


def _store_source(
    config: DataConfig, home: Home, source: Source, name: str, reporter: Reporter, map_in_order: MapInOrder
) -> Path:
    reporter.log(f"reading {source.examples} images of {config.source}")
    catalog = read_catalog(source, lambda done: reporter.progress(done, 2 * source.examples), map_in_order)
    fingerprint = fingerprint_catalog(catalog, source.class_names)
    carve_validation = "train" in source.splits and "validation" not in source.splits
    channels = config.channels or source.channels
    cache = config.cache
    if cache in ("auto", "memory"):
        shape = (config.image_size, config.image_size, channels)
        stored = (config.limit or source.examples) * len(source.class_names) * len(SPLITS)
        chosen, why = choose_cache(min(stored, source.examples), shape, home.data)
        if cache == "auto":
            cache = chosen
            reporter.log(f"data.cache=auto: {chosen} ({why})")
        elif chosen != cache:
            instead = f"data.cache=auto would choose {chosen}"
            reporter.log(f"warning: data.cache=memory: these images may not fit into memory ({why}); {instead}")
    trained = [entry for entry in catalog if entry.split == "train"]
    # What `data.group` keeps together anyway is no copy here.
    apart = {(entry.sha256, entry.group) for entry in trained} if config.group else trained
    preprocessing = describe_preprocessing(
        config,
        channels=channels,
        carve_validation=carve_validation,
        is_upright=all(entry.orientation == UPRIGHT for entry in catalog),
        has_copies=len({entry.sha256 for entry in trained}) < len(apart),
        cache=cache,
    )
    directory = dataset_directory(home, name, fingerprint, preprocessing)
    if fetch_dataset(directory, reporter.log):
        return _accept_present(config, directory, reporter)
    splits = select(catalog, source.class_names, config, reporter.log)
    if count := sum(entry.has_16_bits for split, entry in zip(splits, catalog, strict=True) if split):
        reporter.log(f"{count} images have 16 bits a channel: the upper 8 are used")
    plan = Plan(
        config=config,
        source=source,
        catalog=catalog,
        splits=splits,
        fingerprint=fingerprint,
        preprocessing=preprocessing,
        map_in_order=map_in_order,
    )
    with complete_directory(directory) as aside:
        fill(aside, plan, lambda done, total: reporter.progress(source.examples + done, source.examples + total))
    reporter.log(f"prepared {directory}")
    for line in read_report(directory).count_lines():
        reporter.log(line)
    return directory
