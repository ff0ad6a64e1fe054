"""Prepared datasets in the object store, under the names that they have in `RAMPLINE_HOME/data`.

Where there is no store, or it does not answer, data is prepared: nothing here ends a run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rampline.data.dataset import PreparedDataset
from rampline.files import ASIDE, delete_unfinished, locked, write_json
from rampline.record.object_store import ObjectStore, StoreDamaged, first_line

Log = Callable[[str], None]


def fetch_dataset(directory: Path, log: Log) -> bool:
    """Fetch `RAMPLINE_HOME/data/NAME-KEY`, unless it is here; returns whether it is here then.

    The caller holds the lock of the folder that it is in. `log` gets a line for what a user should know.
    """
    store = ObjectStore.from_environment()
    if store is None or directory.is_dir():
        return directory.is_dir()
    delete_unfinished(directory.parent, f"{directory.name}{ASIDE}")  # of a process that was killed while it fetched
    try:
        found = store.fetch_folder(_key(directory), directory)
    except (OSError, StoreDamaged) as error:
        log(f"warning: {directory.name} cannot be fetched from {store.url}: {first_line(error)}")
        return False
    if found:
        log(f"fetched {directory.name} from {store.url}")
    return found


def fetch_known(entry: Path, log: Log) -> bool:
    """Fetch the dataset that an entry of the index leads to, and the entry, which is not here yet.

    See `rampline.data.address`.
    """
    store = ObjectStore.from_environment()
    if store is None:
        return False
    try:
        known = store.read_json(_index_key(entry))
    except OSError as error:
        log(f"warning: {store.url} does not answer: {first_line(error)}")
        return False
    except StoreDamaged as damage:
        log(f"warning: {first_line(damage)}")
        return False
    data = entry.parents[1]
    with locked(data / ".lock", lambda _: log(f"waiting for another preparation in {data}")):
        if known is None or not fetch_dataset(data / Path(known["directory"]).name, log):
            return False
        write_json(entry, known)
    return True


def put_dataset(dataset: PreparedDataset, log: Log, entry: Path | None = None) -> None:
    """Put a dataset into the store, unless it is there, and an entry of the index that leads to it."""
    store, directory = ObjectStore.from_environment(), dataset.directory
    if store is None:
        return
    try:
        if store.put_folder(_key(directory), directory):
            log(f"put {directory.name} into {store.url}")
        if entry:
            store.write_json(_index_key(entry), {"directory": directory.name, "source": dataset.source})
    except (OSError, StoreDamaged) as error:
        log(f"warning: {directory.name} cannot be put into {store.url}: {first_line(error)}")


def _key(directory: Path) -> str:
    return f"data/{directory.name}"


def _index_key(entry: Path) -> str:
    return f"data/index/{entry.name}"
