"""An execution in the object store: put there as it grows, whole or not at all, and fetched by another home."""

import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import pytest
from command_line import wait_until
from s3_server import S3

from rampline.config import RunConfig
from rampline.errors import InputError, TakenOver
from rampline.files import read_json, write_json
from rampline.record.home import Home
from rampline.record.object_store import STREAMS, ObjectStore
from rampline.record.run_directory import RunIdentity
from rampline.study import Study, load_study, stored_execution
from rampline.study.execution_file import Execution, began_at
from rampline.study.stored_execution import (
    Keeper,
    Manifest,
    fetch_execution,
    is_taken_over,
    kept,
    open_checkpoints,
)

KEY = "runs/digits/e1"
DATASET = "digits-0123"
LATER = {"datasets": {"mirrored-ramp": "../digits-4567"}}  # nothing outside the home is written


@pytest.fixture(scope="module")
def study() -> Study:
    return load_study("digits", only=["baseline"])


@pytest.fixture
def store(s3: S3) -> ObjectStore:
    opened = ObjectStore.from_environment()
    assert opened
    return opened


@pytest.fixture
def execution(study: Study, tmp_path: Path) -> Execution:
    """In the home `a`: a run with its files, as one that trains has them, and its data."""
    home = Home(root=tmp_path / "a")
    made = Execution(folder=home.runs / "digits" / "e1", study=study, home=home, parent_run_id="r")
    made.write()
    identity = RunIdentity(study="digits", name="baseline", dataset=str(home.data / DATASET))
    made.directory("baseline").create(RunConfig(), identity)
    (home.data / DATASET).mkdir(parents=True)
    return made


def save(execution: Execution, step: int, *, keep: int = 2) -> None:
    """A checkpoint, and the event that tells of it; as the chief does, the oldest are removed after that."""
    run = execution.directory("baseline")
    aside = run.path / ".aside"
    aside.mkdir()
    (aside / "variables.npz").write_bytes(os.urandom(100_000))
    (aside / "progress.json").write_text(json.dumps({"step": step}))
    run.checkpoints.mkdir(exist_ok=True)
    aside.rename(run.checkpoints / f"step-{step:08d}")
    with open(run.events_file, "a") as events:
        events.write(json.dumps({"event": "checkpoint", "step": step}) + "\n")
    for old in sorted(run.checkpoints.iterdir())[:-keep]:
        shutil.rmtree(old)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.glob("baseline/checkpoints/step-*"))


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@contextmanager
def keeping(store: ObjectStore, execution: Execution) -> Iterator[Keeper]:
    keeper = Keeper(store, execution)
    try:
        yield keeper
    finally:
        keeper.close(lambda line: None)


def newest_steps(store: ObjectStore) -> list[int]:
    """Of the checkpoints that are whole there."""
    manifest = Manifest.newest(store, KEY)
    names = manifest.files if manifest else {}
    return sorted(int(name.split("/")[3][5:]) for name in names if name.endswith("progress.json"))


def fetch(store: ObjectStore, root: Path, name: str | None = None) -> list[str]:
    """Into the home at `root`; what was said."""
    lines: list[str] = []
    fetch_execution(store, "digits", Home(root=root), name, lines.append)
    return lines


def test_another_home_finds_all_of_it_with_paths_that_lead_there(store, execution, tmp_path: Path) -> None:
    (execution.home.data / DATASET / "manifest.json").write_text("{}")
    store.put_folder(f"data/{DATASET}", execution.home.data / DATASET)
    # Of a run that has not begun.
    write_json(execution.folder / "execution.json", read_json(execution.folder / "execution.json") | LATER)
    store.put_folder("data/digits-4567", execution.home.data / DATASET)
    run = execution.directory("baseline")
    write_json(run.config_file, {**read_json(run.config_file), "note": f"{run.path}/weights", "other": "/elsewhere"})
    write_json(execution.folder / "delivery.json", {"process": "of this machine"})
    (run.path / "heartbeats").mkdir()
    (run.path / "heartbeats" / "chief-0").touch()
    execution.reports.mkdir(parents=True)
    (execution.reports / "report.html").write_text("<html>")
    with keeping(store, execution):
        save(execution, 10)
        wait_until(lambda: newest_steps(store) == [10], 20)
        save(execution, 20)
        save(execution, 30)
    # By a process that was killed; the last one is of another execution.
    left = [tmp_path / "b" / name / "digits" / ".e1.0123abcd" for name in ("runs", "reports")]
    left.append(tmp_path / "b" / "data" / f".{DATASET}.0123abcd")
    left.append(tmp_path / "b" / "runs" / "digits" / ".e1.b.0123abcd")
    for folder in left:
        folder.mkdir(parents=True)
    said = fetch(store, tmp_path / "b")
    fetched = [f"fetched {name} from {store.url}" for name in (DATASET, "digits-4567")]
    assert said == [f"fetching execution e1 from {store.url}", *fetched]
    assert [folder.exists() for folder in left] == [False, False, False, True]
    (found,) = [Execution.latest("digits", Home(root=tmp_path / "b"))]
    assert found
    assert (found.home.root, found.parent_run_id) == (tmp_path / "b", "r")
    assert began_at(found.folder) == began_at(execution.folder)
    there, here = content(execution.folder), content(found.folder)
    changed = ("execution.json", "baseline/config.json")
    assert {name: here[name] for name in here if name not in changed} == {
        name: there[name] for name in there if name not in (*changed, "delivery.json", "baseline/heartbeats/chief-0")
    }
    assert steps(found.folder) == [20, 30]
    assert found.directory("baseline").read_identity().dataset == str(tmp_path / "b" / "data" / DATASET)
    config = read_json(found.directory("baseline").config_file)
    assert (config["note"], config["other"]) == (f"{found.folder}/baseline/weights", "/elsewhere")
    assert content(found.reports) == {"report.html": b"<html>"}
    assert content(tmp_path / "b" / "data" / DATASET) == {"manifest.json": b"{}"}
    assert fetch(store, tmp_path / "b") == []


def test_old_checkpoints_go_from_the_store_as_they_do_here(s3: S3, store, execution) -> None:
    with keeping(store, execution):
        for step in range(10, 60, 10):
            save(execution, step)
            wait_until(lambda: step in newest_steps(store), 20)  # noqa: B023
    manifest = Manifest.newest(store, KEY)
    assert manifest
    assert newest_steps(store) == [40, 50]
    assert s3.keys(KEY) == sorted([*manifest.keys(), f"{KEY}/{manifest.owner}/owner.json"])


def test_what_has_no_manifest_yet_is_no_part_of_it(s3: S3, store, execution, tmp_path: Path) -> None:
    """As a machine leaves it that is lost between a checkpoint's files and the manifest."""
    save(execution, 10)
    with keeping(store, execution):
        pass
    manifest = Manifest.newest(store, KEY)
    assert manifest
    lost = manifest.key_of("run/baseline/checkpoints/step-00000020/", manifest.number + 1)
    s3.overwrite(f"{lost}variables.npz", b"half")
    s3.overwrite(f"{lost}progress.json", b"{}")
    # Of a checkpoint that is gone here, too.
    s3.overwrite(manifest.key_of("run/baseline/checkpoints/step-00000015/variables.npz", 7), b"half")
    fetch(store, tmp_path / "b")
    assert steps(tmp_path / "b" / KEY) == [10]
    # The next one of this home is complete all the same.
    save(execution, 20)
    with keeping(store, execution):
        pass
    fetch(store, tmp_path / "c")
    assert content(tmp_path / "c" / KEY / "baseline/checkpoints") == content(
        execution.directory("baseline").checkpoints
    )
    newest = Manifest.newest(store, KEY)
    assert newest
    assert newest.number > 7
    assert s3.keys(KEY) == sorted([*newest.keys(), f"{KEY}/{newest.owner}/owner.json"])


class Together(ObjectStore):
    """A store that answers who asks for a manifest when as many ask as may at once."""

    asking = threading.Barrier(STREAMS)

    def read_json(self, key: str) -> Any:
        if key.startswith("runs/"):
            self.asking.wait(20)
        return super().read_json(key)


def test_manifests_of_many_executions_are_read_at_once(store, tmp_path: Path) -> None:
    for number in range(STREAMS):
        key = f"runs/digits/e{number}"
        Manifest(key=key, owner="0001-0123abcd", number=1, home="", began=number, files={}).write(store)
    with pytest.raises(InputError, match=r"e7/execution\.json"):  # the newest, which is empty
        fetch(Together(store.url, store.files), tmp_path / "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"version": 1, "exec', r"cannot be fetched from .*\.json is not what was put there: Unterminated string"),
        (b'{"version": 1}', r"cannot be fetched from .*\.json is not what was put there: KeyError"),
        (b'{"version": 2}', r"s3://.*\.json was written by a newer rampline \(version 2\); this one reads 1: upgrade"),
    ],
)
def test_a_manifest_that_cannot_be_read_is_told_of_in_one_line(
    s3: S3, store, execution, tmp_path: Path, content: bytes, message: str
) -> None:
    save(execution, 10)
    with keeping(store, execution):
        pass
    manifest = Manifest.newest(store, KEY)
    assert manifest
    s3.overwrite(f"{KEY}/{manifest.owner}/{manifest.number:08d}.json", content)
    with pytest.raises(InputError, match=message) as told:
        fetch(store, tmp_path / "b")
    assert "\n" not in str(told.value)
    if b'"version": 2' in content:
        return
    # Who has put it there puts all there once more.
    with keeping(store, execution):
        pass
    fetch(store, tmp_path / "c")
    assert steps(tmp_path / "c" / KEY) == [10]


def test_a_damaged_checkpoint_is_told_of_and_left_to_the_start_that_checks_it(s3, store, execution, tmp_path) -> None:
    save(execution, 10)
    save(execution, 20)
    with keeping(store, execution):
        pass
    (key,) = [key for key in s3.keys(KEY) if key.endswith("step-00000020~variables.npz")]
    s3.overwrite(key, b"damaged")
    said = fetch(store, tmp_path / "b")
    assert f"warning: {store.url}/{key} is not what was put there" in said
    (key,) = [key for key in s3.keys(KEY) if key.endswith("run~baseline~events.jsonl")]
    s3.overwrite(key, b"damaged")
    with pytest.raises(InputError, match=r"cannot be fetched from .*events\.jsonl is not what was put there"):
        fetch(store, tmp_path / "c")
    assert not (tmp_path / "c" / KEY).exists()


def test_an_older_owner_writes_nothing_that_counts(s3: S3, store, execution, tmp_path: Path) -> None:
    save(execution, 10)
    with keeping(store, execution) as old:
        wait_until(lambda: newest_steps(store) == [10], 20)
        fetch(store, tmp_path / "b")
        continued = Execution.latest("digits", Home(root=tmp_path / "b"))
        assert continued
        # Until the new owner has put its first state there, the old one's counts.
        save(execution, 20)
        wait_until(lambda: 20 in newest_steps(store), 20)
        with keeping(store, continued) as new:
            wait_until(lambda: newest_steps(store) == [10], 20)
            save(execution, 30)
            wait_until(lambda: old._ended.is_set(), 20)
            with pytest.raises(TakenOver, match=rf"e1 goes on in process {os.getpid()} of .*, from what s3://"):
                old.tell(print)
            assert newest_steps(store) == [10]
            # What it writes all the same, because it was frozen after its look at the owners, is not read.
            late = Manifest.newest(store, KEY)
            assert late
            Manifest(key=KEY, owner=read_owner(execution), number=99, home="", began=1e10, files={}).write(store)
            assert Manifest.newest(store, KEY) == late
            save(continued, 15)
            wait_until(lambda: newest_steps(store) == [10, 15], 20)
            place = f"{KEY}/{read_owner(continued)}/"
            wait_until(lambda: all(key.startswith(place) for key in s3.keys(KEY)), 20)
            new.tell(print)
    # Its own home goes on from there, too, and not from what it had.
    assert steps(execution.folder) == [20, 30]
    fetch(store, execution.home.root)
    assert steps(execution.folder) == [10, 15]


def read_owner(execution: Execution) -> str:
    return read_json(execution.folder / ".owner.json")["name"]


def test_of_two_that_continue_one_stops(store, execution, tmp_path: Path) -> None:
    save(execution, 10)
    with keeping(store, execution):
        pass
    fetch(store, tmp_path / "b")
    fetch(store, tmp_path / "c")
    first, second = (Execution.latest("digits", Home(root=tmp_path / name)) for name in "bc")
    assert first
    assert second
    with keeping(store, first) as keeper:
        wait_until(lambda: (Manifest.newest(store, KEY) or Manifest).owner == read_owner(first), 20)
        with keeping(store, second) as late:
            wait_until(late._ended.is_set, 20)
            assert [is_taken_over(store, each) for each in (execution, first, second)] == [True, False, True]
            with pytest.raises(TakenOver):
                late.tell(print)
        keeper.tell(print)


def test_an_execution_of_this_home_that_is_as_new_stays(store, execution, tmp_path: Path) -> None:
    save(execution, 10)
    with keeping(store, execution):
        pass
    save(execution, 20)
    assert fetch(store, execution.home.root) == []
    assert fetch(store, execution.home.root, "e1") == []
    assert steps(execution.folder) == [10, 20]
    assert fetch(store, tmp_path / "b", "no-such") == []
    assert fetch(store, tmp_path / "b", "e1") != []


def test_a_home_that_has_fetched_and_put_nothing_there_fetches_what_the_owner_before_has_put_since(
    store, execution, tmp_path: Path
) -> None:
    """It is killed before its first manifest, and the machine that it was fetched from goes on to the end."""
    save(execution, 10)
    with keeping(store, execution):
        pass
    fetch(store, tmp_path / "b")
    assert fetch(store, tmp_path / "b") == []
    assert fetch(store, execution.home.root) == []
    write_json(execution.directory("baseline").result_file, {})
    with keeping(store, execution):
        pass
    owner, copy = tmp_path / "b" / KEY / ".owner.json", tmp_path / "b" / KEY / "baseline" / "result.json"
    kept_before = read_json(owner)
    write_json(owner, {name: kept_before[name] for name in ("name", "after")})  # by an earlier version
    assert fetch(store, tmp_path / "b") == []
    write_json(owner, kept_before)
    assert fetch(store, tmp_path / "b") != []
    assert copy.is_file()
    continued = Execution.latest("digits", Home(root=tmp_path / "b"))
    assert continued
    with keeping(store, continued):
        pass
    assert fetch(store, tmp_path / "b") == []
    fetch(store, execution.home.root)
    assert execution.directory("baseline").is_complete


def test_an_execution_that_was_trained_without_the_store_stays(store, execution, tmp_path: Path) -> None:
    save(execution, 10)
    with keeping(store, execution):
        pass
    fetch(store, tmp_path / "b")
    (tmp_path / "b" / KEY / ".owner.json").unlink()
    before = content(tmp_path / "b" / KEY)
    refusal = "e1 was trained without RAMPLINE_STORE, and s3://.* has another execution"
    for name in ("e1", None):
        with pytest.raises(InputError, match=refusal):
            fetch(store, tmp_path / "b", name)
    assert content(tmp_path / "b" / KEY) == before


def has_said(execution: Execution, said: list[str], *, lines: int) -> bool:
    execution.tell_store(said.append)
    return len(said) >= lines


def test_an_outage_is_told_of_and_then_has_what_is_newest(s3: S3, store, execution) -> None:
    said: list[str] = []
    with kept(execution, said.append):
        save(execution, 10)
        wait_until(lambda: newest_steps(store) == [10], 20)
        s3.stop()
        try:
            for step in (20, 30, 40):
                save(execution, step)
            wait_until(lambda: has_said(execution, said, lines=1), 20)
        finally:
            s3.start()
        wait_until(lambda: has_said(execution, said, lines=2), 20)
        assert newest_steps(store) == [30, 40]
    assert said[0].startswith(f"warning: {store.url} takes nothing, training goes on: ")
    assert said[1].startswith(f"{store.url} answers again after ")
    assert len(said) == 2


class LostAnswer(ObjectStore):
    """A store that takes the second manifest, but whose answer to that does not arrive."""

    lost: ClassVar[list[dict[str, Any]]] = []

    def write_json(self, key: str, value: Any) -> None:
        super().write_json(key, value)
        if key.endswith("/00000002.json") and not self.lost:
            self.lost.append(value["execution"]["files"])
            raise OSError("timeout")


def test_a_manifest_whose_answer_was_lost_counts_and_nothing_of_it_is_overwritten(store, execution) -> None:
    with keeping(LostAnswer(store.url, store.files), execution):
        save(execution, 10)
        wait_until(lambda: newest_steps(store) == [10], 20)
        save(execution, 20)
        wait_until(lambda: bool(LostAnswer.lost), 20)
        # Events are other ones then than when the answer was lost.
        save(execution, 30)
        wait_until(lambda: newest_steps(store) == [20, 30], 20)
    newest = Manifest.newest(store, KEY)
    assert newest
    events = [files["run/baseline/events.jsonl"]["at"] for files in (LostAnswer.lost[0], newest.files)]
    assert (events[0], events[1] > 2, newest.number > 2) == (2, True, True)
    # What the first manifest had and the newest has not is no longer there either.
    place = f"{newest.key}/{newest.owner}"
    assert {f"{place}/{name}" for name in store.names(place)} - newest.keys() <= {f"{place}/owner.json"}


def test_the_end_does_not_wait_long_for_a_store_that_is_away(s3: S3, store, execution) -> None:
    said: list[str] = []
    s3.stop()
    try:
        began = time.monotonic()
        with kept(execution, said.append):
            save(execution, 10)
            wait_until(lambda: has_said(execution, said, lines=1), 20)
            ended = time.monotonic()
        assert time.monotonic() - ended < 10
        assert time.monotonic() - began < 30
    finally:
        s3.start()
    assert f"e1: {store.url} has nothing of it, not what came after" in said


class Slow(ObjectStore):
    """A store that takes a minute for each file."""

    def put_file(self, key: str, file: BinaryIO) -> dict[str, Any]:
        class Trickle(BytesIO):
            def read(self, size: int | None = -1, /) -> bytes:
                time.sleep(0.1)
                return super().read(1)

        return super().put_file(key, Trickle(bytes(600)))


def test_the_end_does_not_wait_for_what_is_under_way_to_a_slow_store(
    store, execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of Python waits for the threads of a pool."""
    monkeypatch.setattr(stored_execution, "CLOSE_SECONDS", 1.0)
    before = {*threading.enumerate()}
    with keeping(Slow(store.url, store.files), execution):
        pass
    wait_until(lambda: before >= {*threading.enumerate()}, 10)


def test_a_checkpoint_that_is_removed_while_it_is_put_there_can_still_be_read(execution) -> None:
    save(execution, 10)
    checkpoints = execution.directory("baseline").checkpoints
    with open_checkpoints(checkpoints, lambda path: path.name == "progress.json") as files:
        shutil.rmtree(checkpoints)
        sizes = {path.name: file and len(file.read()) for path, file in files}
    assert sizes == {"variables.npz": 100_000, "progress.json": None}


def test_a_long_study_needs_few_open_files(store, execution) -> None:
    """The second time, all but one checkpoint is there already."""
    for run in range(40):
        for step in (1, 2, 3):
            folder = execution.folder / f"run-{run}" / "checkpoints" / f"step-{step:08d}"
            folder.mkdir(parents=True)
            for name in ("variables.npz", "progress.json"):
                (folder / name).write_text("{}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))
    try:
        with keeping(store, execution):
            wait_until(lambda: len(newest_steps(store)) == 120, 20)
            save(execution, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(newest_steps(store)) == 121
