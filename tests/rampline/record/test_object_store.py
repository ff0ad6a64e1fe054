"""Folders in an object store: complete or absent, verified, and what is said of a store that cannot be used."""

import re
import signal
import threading
import time
from io import BytesIO
from pathlib import Path

import pytest
from folder_content import read_tree
from s3_server import S3

from rampline.errors import InputError
from rampline.record import object_store
from rampline.record.object_store import STREAMS, ObjectStore, StoreDamaged, at_once

CONTENT = {
    "small.txt": b"text",
    "empty": b"",
    "deep/er/large.bin": bytes(range(256)) * 50_000,
    "packed.gz": b"\x1f\x8b?",
}


@pytest.fixture(params=["s3", "folder"])
def store(request: pytest.FixtureRequest, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    if request.param == "folder":
        monkeypatch.setenv("RAMPLINE_STORE", str(tmp_path / "store"))
    opened = ObjectStore.from_environment()
    assert opened
    return opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in CONTENT.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(content)
    return tmp_path / "folder"


def test_a_folder_comes_back_as_it_was_and_is_put_once(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    store.check()
    assert store.put_folder("data/a", folder)
    assert not store.put_folder("data/a", folder)
    assert store.names("data") == ["a", "a.json"]
    assert store.fetch_folder("data/a", tmp_path / "back")
    assert read_tree(tmp_path / "back") == CONTENT
    store.delete_folder("data/a")
    assert store.names("data") == ["a.json"]


def test_what_has_no_manifest_is_absent(store: ObjectStore, folder: Path, tmp_path: Path) -> None:
    """As a machine leaves it that is lost after it has put the files there."""
    for name in CONTENT:
        with open(folder / name, "rb") as file:
            store.put_file(f"data/a/{name}", file)
    assert store.names("data/a") == ["deep", "empty", "packed.gz", "small.txt"]
    assert not store.fetch_folder("data/a", tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("damage", [b"tex!", b"tex", None])
def test_what_is_not_as_it_was_put_is_found_and_put_anew(
    store: ObjectStore, folder: Path, tmp_path: Path, damage: bytes | None
) -> None:
    (folder / "deep/er/large.bin").unlink()
    store.put_folder("data/a", folder)
    store.delete("data/a/small.txt")
    if damage is not None:
        with store.files.open_output_stream("data/a/small.txt") as stream:
            stream.write(damage)
    with pytest.raises(StoreDamaged, match=r"/data/a is not what was put there: .*data/a/small.txt"):
        store.fetch_folder("data/a", tmp_path / "back")
    assert [path.name for path in tmp_path.iterdir() if "back" in path.name] == []
    assert not store.fetch_folder("data/a", tmp_path / "back")
    assert store.put_folder("data/a", folder)
    assert store.fetch_folder("data/a", tmp_path / "back")


def test_a_manifest_does_not_lead_out_of_the_folder(store: ObjectStore, tmp_path: Path) -> None:
    store.write_json("data/a.json", {"files": {"../../outside": {"bytes": 0, "sha256": ""}}})
    with pytest.raises(StoreDamaged, match="outside"):
        store.fetch_folder("data/a", tmp_path / "in" / "back")
    assert not list(tmp_path.rglob("outside"))


@pytest.mark.parametrize(
    "url, message",
    [
        ("s3://no-such-bucket/runs", r"cannot be written to: .*NO_SUCH_BUCKET"),
        ("s3://", r"is not allowed: it must be s3://BUCKET/PREFIX, gs://"),
        ("ftp://host/folder", r"is not allowed: it must be s3://BUCKET/PREFIX"),
        ("relative/folder", r"is not allowed: it must be .* or an absolute path"),
        ("az://container/runs", r"needs AZURE_STORAGE_ACCOUNT"),
        ("s3://key:secret@bucket/runs", r"RAMPLINE_STORE holds a user name, password or token"),
        ("/proc/store", r"cannot be written to: "),
        ("gs://no-such-bucket/runs", r"cannot be written to: .*Retry policy exhausted"),
    ],
)
def test_a_store_that_cannot_be_used_is_told_of_in_one_line(
    s3: S3, monkeypatch: pytest.MonkeyPatch, url: str, message: str
) -> None:
    monkeypatch.setenv("RAMPLINE_STORE", url)
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(object_store, "GS_SECONDS", 1)
    with pytest.raises(InputError, match=message) as told:
        _check()
    assert "\n" not in str(told.value)


class Slow(BytesIO):
    """A large file, of which a block takes a moment: 20 seconds in all."""

    def read(self, size: int | None = -1, /) -> bytes:
        time.sleep(0.1)
        return super().read(1)


def test_an_interruption_does_not_wait_for_large_files(store: ObjectStore) -> None:
    """Neither for those under way nor for those that have not begun."""
    threading.Timer(1, signal.pthread_kill, [threading.get_ident(), signal.SIGINT]).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        at_once(lambda number: store.put_file(f"data/{number}", Slow(bytes(200))), range(3 * STREAMS))
    assert time.monotonic() - began < 10


def test_nobody_answers(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(InputError, match=re.escape(f"RAMPLINE_STORE={s3.url} cannot be written to: ")):
        _check()


def test_without_the_variable_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAMPLINE_STORE", raising=False)
    assert ObjectStore.from_environment() is None


def _check() -> None:
    store = ObjectStore.from_environment()
    assert store
    store.check()
