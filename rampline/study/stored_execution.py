"""An execution in the object store: put there as it grows, and fetched by the machine that continues it.

    runs/STUDY/EXECUTION/OWNER/NUMBER.json     a manifest: every file of the execution, written last
    runs/STUDY/EXECUTION/OWNER/NUMBER~FILE     what is new with it
    runs/STUDY/EXECUTION/OWNER/owner.json      who that is
    reports/STUDY/EXECUTION/…                  the report once more, for people

An owner is a home that works on the execution: `0002-3f9a1c2b` is the second. It writes below its own name alone, and
stops when it finds a greater one. What counts is the last manifest of the greatest owner that has any. So whatever the
owner before writes, however late, nobody reads it any more.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rampline.credentials import first_line
from rampline.data.stored_dataset import Log, fetch_dataset
from rampline.errors import InputError, TakenOver
from rampline.files import ASIDE, complete_directory, delete_unfinished, locked, read_json, refuse_newer, write_json
from rampline.jobs.lock import hold
from rampline.record.events import drop_half_line
from rampline.record.home import Home
from rampline.record.object_store import ObjectStore, StoreDamaged, at_once, inside
from rampline.record.provenance import process_identity
from rampline.study.execution_file import FILE, Execution, began_at, is_begun, prepared_names

VERSION = 1
OWNER = ".owner.json"
# What a machine that goes on has to know soon.
MILESTONES = (FILE, "*/checkpoints/step-*/progress.json", "*/result.json", "*/evaluation.json")
# Of processes of this machine.
NOT_KEPT = {"heartbeats", "roles.json", "stop.json", "delivery.json"}
APPENDED = (".jsonl", ".log")
# Of these a start elsewhere reads where things are.
WITH_PATHS = (FILE, "*/config.json")
LOOK_SECONDS, REFRESH_SECONDS = 0.5, 60.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
# What is under way at the end is waited for; a store that does not answer, not for long.
CLOSE_SECONDS, AWAY_SECONDS = 120.0, 5.0
FETCH_ATTEMPTS = 3
# What names of files in a manifest begin with.
RUN, REPORT = "run/", "report/"

Files = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Owner:
    """Who works on an execution, in its folder as `.owner.json`.

    Attributes:
        name: of this home.
        after: the greatest owner that there was before; empty for none.
        fetched: number of the manifest of that owner which was fetched, 0 for none; `None` where it was not kept.
    """

    name: str
    after: str
    fetched: int | None = None

    @classmethod
    def following(cls, other: str, fetched: Manifest | None = None) -> Owner:
        """The next one."""
        number = fetched.number if fetched and fetched.owner == other else 0
        return cls(f"{int(other[:4] or 0) + 1:04d}-{secrets.token_hex(4)}", other, number)

    @classmethod
    def read(cls, folder: Path) -> Owner | None:
        """The one of this home, if it has put the execution into a store."""
        return cls(**read_json(folder / OWNER)) if (folder / OWNER).is_file() else None

    def is_followed_by(self, greatest: str) -> bool:
        """Whether the greatest owner in the store goes on with what this one has."""
        return greatest != self.name and greatest > self.after

    def is_behind(self, newest: Manifest) -> bool:
        """Whether the owner before has put something newer there, and this one nothing since it has fetched."""
        return self.fetched is not None and newest.owner == self.after and newest.number > self.fetched

    def write(self, folder: Path) -> None:
        """Keep it in the folder of the execution."""
        write_json(folder / OWNER, dataclasses.asdict(self))


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A state of an execution that is whole in the store.

    Attributes:
        key: of the execution.
        owner: who has put it there.
        number: counts its manifests.
        home: root of its home: the paths in its files begin with it.
        began: Unix seconds.
        files: by `run/PATH` or `report/PATH`: `bytes`, `sha256`, `mtime_ns`, and `at`, the number that it is new with.
    """

    key: str
    owner: str
    number: int
    home: str
    began: float
    files: Files

    @classmethod
    def newest(cls, store: ObjectStore, key: str) -> Manifest | None:
        """The last one of the greatest owner that has any."""
        seen: list[str] = []
        while seen != (owners := owners_of(store, key)):  # a greater one deletes the lesser
            seen = owners
            for owner in reversed(owners):
                if found := cls.last_of(store, key, owner):
                    return found
        return None

    @classmethod
    def last_of(cls, store: ObjectStore, key: str, owner: str) -> Manifest | None:
        """The last one of an owner.

        Raises:
            StoreDamaged: when it is not what was put there.
            ConfigError: when a newer rampline has written it.
        """
        while found := [name for name in store.names(f"{key}/{owner}") if re.fullmatch(r"\d{8}\.json", name)]:
            place = f"{key}/{owner}/{found[-1]}"
            content = store.read_json(place)
            if content is None:
                continue  # there is a newer one by now
            try:
                refuse_newer(f"{store.url}/{place}", content, version=VERSION)
                return cls(key=key, owner=owner, number=int(found[-1][:8]), **content["execution"])
            except (AttributeError, KeyError, TypeError) as error:
                raise StoreDamaged(f"{store.url}/{place} is not what was put there: {error!r}") from error
        return None

    def write(self, store: ObjectStore) -> None:
        """Make this state count."""
        execution = {"home": self.home, "began": self.began, "files": self.files}
        store.write_json(f"{self._place}/{self.number:08d}.json", {"version": VERSION, "execution": execution})

    def key_of(self, name: str, at: int | None = None) -> str:
        """Where the content of a file is, which is new with the manifest of the number `at`.

        No folders: pyarrow leaves an empty object for each of which it deletes the last file.
        """
        return f"{self._place}/{at or self.files[name]['at']:08d}~{name.replace('/', '~')}"

    def keys(self) -> set[str]:
        """Of all its objects."""
        return {f"{self._place}/{self.number:08d}.json", *map(self.key_of, self.files)}

    @property
    def name(self) -> str:
        """Of the execution."""
        return self.key.rpartition("/")[2]

    @property
    def _place(self) -> str:
        return f"{self.key}/{self.owner}"


def key_of(execution: Execution) -> str:
    """Where it is in a store."""
    return f"runs/{execution.study.name}/{execution.name}"


def owners_of(store: ObjectStore, key: str) -> list[str]:
    """Those that an execution has or had, the greatest last."""
    return [name for name in store.names(key) if re.fullmatch(r"\d{4}-[0-9a-f]{8}", name)]


def is_taken_over(store: ObjectStore, execution: Execution) -> bool:
    """Whether another home goes on with an execution; not where the store does not say so."""
    owner = Owner.read(execution.folder)
    with suppress(OSError):
        return owner is not None and owner.is_followed_by(max(owners_of(store, key_of(execution)), default=""))
    return False


class Keeper:
    """Puts an execution into the store from a daemon thread, as it grows; nobody waits for the store before the end.

    As soon as a checkpoint or a result is there, and else once a minute. While the store does not answer it is tried
    again, each time with what is newest then.
    """

    def __init__(self, store: ObjectStore, execution: Execution) -> None:
        self._store, self._execution = store, execution
        self._key = key_of(execution)
        self._owner = Owner.read(execution.folder) or Owner.following("")
        self._owner.write(execution.folder)
        self._last: Manifest | None = None
        self._lines = deque[str]()
        self._taken, self._is_told = "", False
        self._away_since: float | None = None
        self._put_at: time.struct_time | None = None
        self._is_closed = self._is_given_up = False
        self._woken, self._ended = threading.Event(), threading.Event()
        threading.Thread(target=self._run, name="store", daemon=True).start()

    def tell(self, log: Log) -> None:
        """Log what there is to say, by the caller's thread.

        Raises:
            TakenOver: when another machine goes on with the execution.
        """
        while self._lines:
            log(self._lines.popleft())
        if self._taken:
            self._is_told = True
            raise TakenOver(self._taken)

    def close(self, log: Log) -> None:
        """Put the last state into the store, and wait for that; a line says if it did not get there."""
        self._is_closed = True
        self._woken.set()
        began = time.monotonic()
        while not self._ended.wait(LOOK_SECONDS / 5):
            if time.monotonic() - began > (CLOSE_SECONDS if self._away_since is None else AWAY_SECONDS):
                self._is_given_up = True  # else the end of this process would wait for all that is under way
                what = f"its state of {time.strftime('%H:%M:%S', self._put_at)}" if self._put_at else "nothing of it"
                self._lines.append(f"{self._execution.name}: {self._store.url} has {what}, not what came after")
                break
        while self._lines:
            log(self._lines.popleft())
        if self._taken and not self._is_told:
            log(self._taken)

    def _run(self) -> None:
        seen, looked_at, pause = None, 0.0, FIRST_PAUSE_SECONDS
        while not (self._taken or self._is_given_up):
            is_closed = self._is_closed  # read first: the execution does not change after it
            self._woken.clear()
            milestones = {str(path) for pattern in MILESTONES for path in self._execution.folder.glob(pattern)}
            if is_closed or milestones != seen or time.monotonic() - looked_at > REFRESH_SECONDS:
                try:
                    self._put()
                except Exception as error:  # noqa: BLE001 - whatever it is, training goes on and a later attempt may work
                    self._last = None  # a manifest whose answer was lost may be there
                    self._note_outage(error)
                    self._woken.wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
                    continue
                seen, looked_at, pause = milestones, time.monotonic(), FIRST_PAUSE_SECONDS
                self._note_answer()
                if is_closed:
                    break
            self._woken.wait(LOOK_SECONDS)
        self._ended.set()

    def _put(self) -> None:
        owners = owners_of(self._store, self._key)
        if not self._owns(owners[-1] if owners else ""):
            return
        place = f"{self._key}/{self._owner.name}"
        # Nobody completes these any more: this thread alone puts something there, and one put after the other.
        there, last = self._store.names(place), self._last
        with suppress(StoreDamaged):  # then all is put there once more
            last = last or Manifest.last_of(self._store, self._key, self._owner.name)
        manifest = Manifest(
            key=self._key,
            owner=self._owner.name,
            # What a put that failed has left may still be on its way: the next one has other names.
            number=1 + max((int(name[:8]) for name in there if name[:8].isdecimal()), default=0),
            home=str(self._execution.home.root),
            began=began_at(self._execution.folder),
            files={},
        )
        known = last.files if last else {}
        # A result comes with its checkpoints, and these with all that was told before: as a crash leaves it.
        self._put_files(manifest, known, self._plain_files(is_appended=False))
        for checkpoints in self._execution.folder.glob("*/checkpoints"):
            with open_checkpoints(checkpoints, lambda path: self._has(known, path, path.stat())) as files:
                names = [self._name_of(path) for path, file in files if file is None]
                manifest.files.update({name: known[name] for name in names})
                self._put_files(manifest, known, [(path, file) for path, file in files if file is not None])
        self._put_files(manifest, known, self._plain_files(is_appended=True))
        manifest.write(self._store)
        self._last, self._put_at = manifest, time.localtime()
        self._store.delete(*({f"{place}/{name}" for name in there if name != "owner.json"} - manifest.keys()))
        for owner in owners:
            if owner < self._owner.name:
                self._store.delete_folder(f"{self._key}/{owner}")

    def _owns(self, greatest: str) -> bool:
        """Whether the greatest owner is the one of this home, which is told of where it is not there yet."""
        name, process = self._owner.name, process_identity()
        if greatest <= self._owner.after:
            self._store.write_json(f"{self._key}/{name}/owner.json", {"process": process})
            greatest = owners_of(self._store, self._key)[-1]
        if greatest == name:
            return True
        other = self._store.read_json(f"{self._key}/{greatest}/owner.json") or {"process": "unknown::"}
        host, number, _ = other["process"].rsplit(":", 2)
        self._taken = f"{self._execution.name} goes on in process {number} of {host}, from what {self._store.url} had"
        return False

    def _plain_files(self, *, is_appended: bool) -> Iterator[tuple[Path, None]]:
        """All that is kept, but for the checkpoints: what lines are added to, or the rest."""
        for root in (self._execution.folder, self._execution.reports):
            for folder, names, files in os.walk(root):
                names[:] = [name for name in names if name[0] != "." and name not in {*NOT_KEPT, "checkpoints"}]
                chosen = (Path(folder, name) for name in files if name[0] != "." and name not in NOT_KEPT)
                yield from ((path, None) for path in chosen if (path.suffix in APPENDED) == is_appended)

    def _put_files(self, manifest: Manifest, known: Files, files: Iterable[tuple[Path, BinaryIO | None]]) -> None:
        """Those that are not in the store yet, as they are now; what is gone since it was listed is left out."""

        def put(item: tuple[Path, BinaryIO | None]) -> None:
            path, opened = item
            with suppress(FileNotFoundError):
                opened = opened or path.open("rb")
            if opened:
                with opened:
                    self._put_file(manifest, known, path, opened)

        at_once(put, files, lambda: self._is_given_up)

    def _put_file(self, manifest: Manifest, known: Files, path: Path, file: BinaryIO) -> None:
        name, stat = self._name_of(path), os.fstat(file.fileno())
        if self._has(known, path, stat):
            manifest.files[name] = known[name]
            return
        described = self._store.put_file(manifest.key_of(name, manifest.number), file)
        manifest.files[name] = {**described, "mtime_ns": stat.st_mtime_ns, "at": manifest.number}
        if name.startswith(REPORT):
            file.seek(0)
            self._store.put_file(f"reports/{self._execution.study.name}/{self._execution.name}/{path.name}", file)

    def _has(self, known: Files, path: Path, stat: os.stat_result) -> bool:
        """Whether the store has the file as it is."""
        before = known.get(self._name_of(path))
        return before is not None and (before["bytes"], before["mtime_ns"]) == (stat.st_size, stat.st_mtime_ns)

    def _name_of(self, path: Path) -> str:
        if path.is_relative_to(self._execution.folder):
            return f"{RUN}{path.relative_to(self._execution.folder)}"
        return f"{REPORT}{path.relative_to(self._execution.reports)}"

    def _note_outage(self, error: Exception) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            self._lines.append(f"warning: {self._store.url} takes nothing, training goes on: {first_line(error)}")

    def _note_answer(self) -> None:
        if self._away_since is not None:
            seconds = time.monotonic() - self._away_since
            self._away_since = None
            self._lines.append(f"{self._store.url} answers again after {seconds:.0f} s, and has what is newest")


@contextmanager
def open_checkpoints(
    folder: Path, is_known: Callable[[Path], bool]
) -> Iterator[Sequence[tuple[Path, BinaryIO | None]]]:
    """All files of a run's checkpoints, open but for the known ones: what is removed after that can still be read.

    Of one run, because a process cannot open as many files as all runs of a long study have.
    """
    while True:
        with ExitStack() as stack:
            try:
                found = [path for step in folder.glob("step-*") for path in step.iterdir()]
                files = [(path, None if is_known(path) else stack.enter_context(path.open("rb"))) for path in found]
            except FileNotFoundError:
                continue  # there is a newer one
            yield files
            return


@contextmanager
def kept(execution: Execution, log: Log) -> Iterator[None]:
    """In the block the execution goes into the store, where there is one; see `Keeper`."""
    store = ObjectStore.from_environment()
    if store is None:
        yield
        return
    keeper = Keeper(store, execution)
    execution.tell_store = keeper.tell
    try:
        yield
    finally:
        keeper.close(log)


def fetch_execution(store: ObjectStore, study: str, home: Home, name: str | None, log: Log) -> None:
    """Fetch the newest execution of a study, or that of a name, unless what is in `home` is as new.

    Args:
        store: where from.
        study: its name.
        home: where it is then, with the data of its runs and its report.
        name: of the execution.
        log: gets a line for what a user should know.

    Raises:
        InputError: when the store cannot be used, what it holds is damaged, a process here works on the execution, or
            one of its name is here that the store does not know.
    """
    try:
        names = [name] if name else store.names(f"runs/{study}")
        found = at_once(lambda one: Manifest.newest(store, f"runs/{study}/{one}"), names)
        newest = max(filter(None, found), key=lambda manifest: manifest.began, default=None)
        if newest and not _is_here(store, newest, home, study, is_named=name is not None):
            _fetch(store, newest, home, study, log)
    except (OSError, StoreDamaged) as error:
        raise InputError(f"study {study} cannot be fetched from {store.url}: {first_line(error)}") from error


def _is_here(store: ObjectStore, manifest: Manifest, home: Home, study: str, *, is_named: bool) -> bool:
    folder, latest = home.runs / study / manifest.name, Execution.latest(study, home)
    if not is_begun(folder):
        is_older = latest and began_at(latest.folder) > manifest.began
        return bool(is_older) and not is_named
    owner = Owner.read(folder)
    if owner is None:
        raise InputError(
            f"{folder} was trained without RAMPLINE_STORE, and {store.url} has another execution of that name: name "
            "one that neither has, or move the folder away"
        )
    return not owner.is_followed_by(owners_of(store, manifest.key)[-1]) and not owner.is_behind(manifest)


def _fetch(store: ObjectStore, manifest: Manifest, home: Home, study: str, log: Log) -> None:
    folder, report = home.runs / study / manifest.name, home.reports / study / manifest.name
    log(f"fetching execution {manifest.name} from {store.url}")
    fetching = locked(folder.parent / ".lock", lambda holder: log(f"waiting for {holder}, which fetches, too"))
    with fetching, hold(folder) if folder.is_dir() else nullcontext():
        for beside in (folder.parent, report.parent):
            delete_unfinished(beside, f"{manifest.name}{ASIDE}")
        for left in reversed(range(FETCH_ATTEMPTS)):
            try:
                with complete_directory(folder, replace=True) as aside:
                    greatest = owners_of(store, manifest.key)[-1]
                    _fetch_files(store, manifest, RUN, aside, log)
                    _lead_home(aside, manifest, home)
                    Owner.following(greatest, manifest).write(aside)
                break
            except FileNotFoundError:
                # Its owner has put something newer there, and deleted this.
                newer = Manifest.newest(store, manifest.key)
                if newer is None or newer == manifest or not left:
                    raise
                manifest = newer
        if any(name.startswith(REPORT) for name in manifest.files):
            with complete_directory(report, replace=True) as aside:
                _fetch_files(store, manifest, REPORT, aside, log)
    with locked(home.data / ".lock"):
        begun = {Path(read_json(file)["dataset"]).name for file in folder.glob("*/run.json")}
        for name in sorted({*begun, *prepared_names(read_json(folder / FILE)).values()}):
            if not fetch_dataset(home.data / name, log):
                log(f"{store.url} does not have {name}: it is prepared again where its source is")


def _fetch_files(store: ObjectStore, manifest: Manifest, part: str, folder: Path, log: Log) -> None:
    def fetch(name: str) -> str:
        path = inside(folder, name.removeprefix(part))
        try:
            store.fetch_file(manifest.key_of(name), path, manifest.files[name])
        except StoreDamaged as damage:
            # A start finds that out, too, and goes on from the checkpoint before.
            if "/checkpoints/" not in name:
                raise
            return f"warning: {damage}"
        return ""

    for line in filter(None, at_once(fetch, [name for name in manifest.files if name.startswith(part)])):
        log(line)


def _lead_home(folder: Path, manifest: Manifest, home: Home) -> None:
    """Let paths in the home that it came from lead into this one."""
    for pattern in WITH_PATHS:
        for file in folder.glob(pattern):
            write_json(file, _moved(read_json(file), manifest.home, str(home.root)))
    for file in folder.rglob("*.jsonl"):
        drop_half_line(file)  # it was read while somebody wrote


def _moved(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _moved(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, old, new) for item in value]
    is_inside = isinstance(value, str) and (value == old or value.startswith(f"{old}/"))
    return f"{new}{value[len(old) :]}" if is_inside else value
