"""Preparing a dataset from the flow process: found if it is there, else made by a process of its own. No TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from rampline.config import DataConfig
from rampline.data.address import look_up, tfds_directory
from rampline.data.dataset import PreparedDataset
from rampline.data.sources import source_module
from rampline.errors import DatasetError
from rampline.files import write_text
from rampline.record.home import Home


def check_undecodable_share(config: DataConfig, *, undecodable: int, examples: int, first: str = "") -> None:
    """The share of examples that do not decode must be at most `data.max_undecodable_share`.

    Args:
        config: what is asked for.
        undecodable: examples that do not decode.
        examples: all examples that were selected, those included.
        first: one of them and its problem, for the message.

    Raises:
        DatasetError: otherwise.
    """
    if undecodable > config.max_undecodable_share * examples:
        allowed = f"data.max_undecodable_share={config.max_undecodable_share:g} allows"
        example = f"; the first is {first}" if first else ""
        raise DatasetError(
            f"{undecodable} of {examples} images of {config.source} do not decode, more than {allowed}{example}"
        )


def check_present(config: DataConfig, dataset: PreparedDataset) -> None:
    """A dataset that was prepared under a laxer `max_undecodable_share` must satisfy the one asked for now."""
    examples = sum(dataset.splits.values()) + dataset.undecodable
    check_undecodable_share(config, undecodable=dataset.undecodable, examples=examples)


def check_classes(
    chosen: Set[tuple[str, int]], stored: Set[tuple[str, int]], class_names: tuple[str, ...], source: str
) -> None:
    """No class may lose all its training examples because they do not decode, and no split all its examples.

    Args:
        chosen: (split, label) of the examples that were selected.
        stored: (split, label) of those of them that decode.
        class_names: name of every label.
        source: what to name in an error.

    Raises:
        DatasetError: otherwise.
    """
    lost = [label for split, label in sorted(chosen - stored) if split == "train"]
    if lost:
        raise DatasetError(
            f"class {class_names[lost[0]]!r} of {source} has no training image that decodes: one is needed"
        )
    empty = {split for split, _ in chosen} - {split for split, _ in stored}
    if empty:
        raise DatasetError(f"{source} has no {min(empty)} image that decodes: at least one is needed")


_END_SECONDS = 5.0
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Decoding needs no GPU, and a GPU touched here would be short of memory in training.
    "CUDA_VISIBLE_DEVICES": "-1",
    # There is an image for every core at any time: splitting one among cores as well costs a tenth.
    "TF_NUM_INTRAOP_THREADS": "1",
}


def locate_prepared(
    config: DataConfig, home: Home, scored_classes: Sequence[str] | None = None
) -> PreparedDataset | None:
    """The prepared dataset of `config.source` as it stands now, if there is one; reads no images.

    Raises:
        DatasetError: when the source itself is missing or wrong.
    """
    fingerprint = source_module(config).stat_fingerprint(config, tfds_directory(home))
    directory = look_up(home, config, fingerprint, scored_classes)
    if directory is None:
        return None
    dataset = PreparedDataset.open(directory)
    check_present(config, dataset)
    return dataset


def prepare_dataset(
    config: DataConfig,
    home: Home,
    *,
    scored_classes: Sequence[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    log: Callable[[str], None] | None = None,
) -> PreparedDataset:
    """Prepare `config.source` in `home.data`, unless that was done before.

    Args:
        config: what to prepare.
        home: where to.
        scored_classes: for images that a trained model is scored on, see `rampline.data.ingest.store_dataset`.
        on_progress: is called with (done, total) examples; every example is read once and decoded once.
        log: is called with lines for the user.

    Raises:
        DatasetError: when the source cannot be read or trained on, in one line; nothing is stored then.
    """
    tell = log or _ignore
    present = locate_prepared(config, home, scored_classes)
    if present is not None:
        tell(f"prepared already: {present.directory}")
        return present
    directory = _run_process(config, home, scored_classes, on_progress or _ignore, tell)
    return PreparedDataset.open(directory)


def _run_process(
    config: DataConfig,
    home: Home,
    scored_classes: Sequence[str] | None,
    on_progress: Callable[[int, int], None],
    log: Callable[[str], None],
) -> Path:
    # In the system's temporary folder: only what a person should read is kept in the home.
    with tempfile.TemporaryFile() as noise:
        process = _start_process(config, home, scored_classes, noise.fileno())
        try:
            last = _relay(process, on_progress, log)
            status = process.wait()
        finally:
            _end_process(process)
        if "directory" in last:
            return Path(last["directory"])
        if "error" in last:
            raise DatasetError(last["error"])
        noise.seek(0)
        text = noise.read().decode(errors="replace")
    log_file = home.data / "logs" / f"prepare-{process.pid}.log"
    write_text(log_file, text)
    raise DatasetError(f"preparing {config.source} {_how_it_ended(status, text)}; its log is {log_file}")


def _start_process(
    config: DataConfig, home: Home, scored_classes: Sequence[str] | None, standard_error: int
) -> subprocess.Popen[str]:
    request = {
        "data": dataclasses.asdict(config),
        "home": str(home.root),
        "parent_pid": os.getpid(),
        "scored_classes": scored_classes,
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "rampline.data", json.dumps(request)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=standard_error,
        text=True,
        # A Ctrl-C in the terminal is for the flow process, which ends this one.
        start_new_session=True,
        env={**os.environ, **_ENVIRONMENT},
    )


def _relay(
    process: subprocess.Popen[str], on_progress: Callable[[int, int], None], log: Callable[[str], None]
) -> dict[str, Any]:
    """Pass messages on until the process closes its output; the last one."""
    message: dict[str, Any] = {}
    for line in process.stdout or ():
        message = json.loads(line)
        if "progress" in message:
            on_progress(*message["progress"])
        elif "log" in message:
            log(message["log"])
    return message


def _end_process(process: subprocess.Popen[str]) -> None:
    """End it and what it may have started, if it still runs; it gets time to remove what it wrote aside."""
    try:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _how_it_ended(status: int, text: str) -> str:
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"failed: {lines[-1]}" if lines else f"ended with status {status}"


def _ignore(*_: object) -> None:
    """For callers that do not listen."""
