"""The work of the preparation process: find the dataset prepared, or read its source and store it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rampline.config import DataConfig
from rampline.data.address import dataset_directory, describe_preprocessing, look_up, remember, tfds_directory
from rampline.data.catalog import fingerprint_catalog, read_catalog
from rampline.data.checks import check_present
from rampline.data.dataset import SPLITS, PreparedDataset
from rampline.data.decoder import compute_in_one_thread
from rampline.data.filling import Plan, fill
from rampline.data.lock import locked
from rampline.data.orientation import UPRIGHT
from rampline.data.parallel import MapInOrder, map_in_order
from rampline.data.processes import CAN_FORK, worker_processes
from rampline.data.report import read_report
from rampline.data.selection import select
from rampline.data.sources import source_module
from rampline.data.sources.source import Source, as_test_images
from rampline.data.storage_choice import choose_cache
from rampline.devices import available_cores
from rampline.files import complete_directory
from rampline.home import Home

# Images per core: a process first makes its own of what TensorFlow needs, a tenth of a second.
_WORTH_A_PROCESS = 100


@dataclass(frozen=True, kw_only=True)
class Reporter:
    """Where a preparation tells how far it is: `progress(done, total)` in examples, and lines for the user."""

    progress: Callable[[int, int], None]
    log: Callable[[str], None]


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
        config: what to prepare.
        home: where to.
        reporter: where to tell about it.
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
    with locked(home.data / ".lock", lambda: reporter.log(f"waiting for another preparation in {home.data}")):
        directory = look_up(home, config, module.stat_fingerprint(config, tfds_directory(home)), scored_classes)
        if directory is not None:
            return _accept_present(config, directory, reporter)
        _remove_leftovers(home)
        reporter.log(f"preparing {config.source} in {home.data}")
        source = module.open_source(config, tfds_directory(home), for_training=scored_classes is None)
        if scored_classes is not None:
            source = as_test_images(source, tuple(scored_classes), config.source)
        for note in source.notes:
            reporter.log(note)
        with _workers(source, may_fork=may_fork) as map_in_order:
            directory = _store_source(config, home, source, module.directory_name(config), reporter, map_in_order)
        remember(home, config, source.stat_fingerprint, directory, scored_classes)
        return directory


@contextmanager
def _workers(source: Source, *, may_fork: bool) -> Iterator[MapInOrder]:
    """Processes where they are possible and worth their start, else threads."""
    cores = available_cores()
    if (
        may_fork
        and CAN_FORK
        and source.read_anywhere
        and source.examples >= _WORTH_A_PROCESS * cores > _WORTH_A_PROCESS
    ):
        compute_in_one_thread()
        with worker_processes() as map_in_processes:
            yield map_in_processes
    else:
        yield map_in_order


def _accept_present(config: DataConfig, directory: Path, reporter: Reporter) -> Path:
    check_present(config, PreparedDataset.open(directory))
    reporter.log(f"prepared already: {directory}")
    return directory


def _remove_leftovers(home: Home) -> None:
    """Directories of preparations that were killed: whoever holds the lock is the only one to have any."""
    for path in home.data.glob(".*/"):
        shutil.rmtree(path)


def _store_source(
    config: DataConfig, home: Home, source: Source, name: str, reporter: Reporter, map_in_order: MapInOrder
) -> Path:
    reporter.log(f"reading {source.examples} images of {config.source}")
    catalog = read_catalog(source, lambda done: reporter.progress(done, 2 * source.examples), map_in_order)
    fingerprint = fingerprint_catalog(catalog, source.class_names)
    carve_validation = "train" in source.splits and "validation" not in source.splits
    channels = config.channels or source.channels
    cache = config.cache
    if cache == "auto":
        shape = (config.image_size, config.image_size, channels)
        stored = (config.limit or source.examples) * len(source.class_names) * len(SPLITS)
        cache, reason = choose_cache(min(stored, source.examples), shape, home.data)
        reporter.log(reason)
    preprocessing = describe_preprocessing(
        config,
        channels=channels,
        carve_validation=carve_validation,
        is_upright=all(entry.orientation == UPRIGHT for entry in catalog),
        cache=cache,
    )
    directory = dataset_directory(home, name, fingerprint, preprocessing)
    if directory.is_dir():
        return _accept_present(config, directory, reporter)
    splits = select(catalog, source.class_names, config)
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
