"""Preparing a dataset from the flow process: found if it is there, else made by a process of its own. No TensorFlow."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rampline.config import DataConfig
from rampline.data.address import index_entry, look_up, tfds_directory
from rampline.data.dataset import PreparedDataset
from rampline.data.sources import source_module
from rampline.data.stored_dataset import fetch_known, put_dataset
from rampline.errors import DatasetError, DownloadFailed, InputError
from rampline.jobs.job import Job, JobFailed, ignore, run_job
from rampline.jobs.local import LOCAL, NO_GPU
from rampline.record.home import Home


def check_undecodable_share(config: DataConfig, *, undecodable: int, examples: int, first: str = "") -> None:
    """The share of the selected examples that do not decode must be at most `data.max_undecodable_share`.

    Raises:
        DatasetError: otherwise.
    """
    if undecodable > config.max_undecodable_share * examples:
        allowed = f"data.max_undecodable_share={config.max_undecodable_share:g} allows"
        example = f"; the first is {first}" if first else ""
        raise DatasetError(
            f"{undecodable} of {examples} images of {config.source} do not decode, more than {allowed}{example}"
        )


def open_prepared(config: DataConfig, directory: Path) -> PreparedDataset:
    """The dataset, unless more is undecodable than `config` allows: it may have been prepared under a laxer one."""
    dataset = PreparedDataset.open(directory)
    examples = sum(dataset.splits.values()) + dataset.undecodable
    check_undecodable_share(config, undecodable=dataset.undecodable, examples=examples)
    return dataset


# To remove what it wrote aside.
_END_SECONDS = 5.0
# There is an image for every core at any time: splitting one among cores as well costs a tenth.
_ENVIRONMENT = {**NO_GPU, "TF_NUM_INTRAOP_THREADS": "1"}


def locate_prepared(config: DataConfig, home: Home) -> PreparedDataset | None:
    """The prepared dataset of `config.source` as it stands now, if there is one; reads no images.

    Raises:
        DatasetError: when the source itself is missing or wrong.
    """
    return _at(_entry(config, home, None), config, home)


def prepare_dataset(
    config: DataConfig,
    home: Home,
    *,
    scored_classes: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] = ignore,
    log: Callable[[str], None] = ignore,
) -> PreparedDataset:
    """Prepare `config.source` in `home.data`, unless it is there, or comes from the object store.

    Args:
        config: what to prepare.
        home: where to.
        scored_classes: see `rampline.data.ingest.store_dataset`.
        on_progress: is called with (done, total) examples; every example is read once and decoded once.
        log: is called with lines for the user.

    Raises:
        DatasetError: when the source cannot be read or trained on, in one line; nothing is stored then.
            `DownloadFailed` when another try may help.
    """
    # Now: what TFDS downloads changes the fingerprint, and another machine has not downloaded anything.
    entry = _entry(config, home, scored_classes)
    present = _at(entry, config, home)
    if present is None and fetch_known(entry, log):
        present = _at(entry, config, home)
    if present is not None:
        log(f"prepared already: {present.directory}")
    else:
        present = PreparedDataset.open(_run_process(config, home, scored_classes, on_progress, log))
    put_dataset(present, log, entry)
    return present


def _entry(config: DataConfig, home: Home, scored_classes: Sequence[str] | None) -> Path:
    """Of the source as it stands now."""
    fingerprint = source_module(config).stat_fingerprint(config, tfds_directory(home))
    return index_entry(home, config, fingerprint, scored_classes)


def _at(entry: Path, config: DataConfig, home: Home) -> PreparedDataset | None:
    directory = look_up(home, entry)
    return open_prepared(config, directory) if directory else None


def _run_process(
    config: DataConfig,
    home: Home,
    scored_classes: Sequence[str] | None,
    on_progress: Callable[[int, int], None],
    log: Callable[[str], None],
) -> Path:
    def hear(event: dict[str, Any]) -> None:
        if event["event"] == "progress":
            on_progress(event["done"], event["total"])
        else:
            log(event["line"])

    # In the system's temporary folder: only what a person should read is kept in the home.
    with tempfile.TemporaryDirectory(prefix="rampline-prepare-") as folder:
        job = Job(
            function="prepare",
            what=f"preparing {config.source}",
            folder=Path(folder),
            arguments={"data": dataclasses.asdict(config), "home": str(home.root), "scored_classes": scored_classes},
            environment=_ENVIRONMENT,
            grace_seconds=_END_SECONDS,
        )
        try:
            return Path(run_job(job, launcher=LOCAL, on_event=hear))
        except DownloadFailed:
            raise
        except InputError as error:
            raise DatasetError(str(error)) from error
        except JobFailed as failure:
            kept = failure.with_log_at(home.data / "logs" / f"{job.folder.name}.log")
            raise DatasetError(str(kept)) from failure
