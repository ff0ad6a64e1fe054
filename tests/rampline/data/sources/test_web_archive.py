"""`url:` from a real server: downloaded once, then read as `folder:ARCHIVE`."""

import hashlib
import shutil

import pytest
from file_server import serve

from rampline.config import DataConfig
from rampline.data.preparation import locate_prepared
from rampline.data.sources import web_archive
from rampline.errors import ConfigError, DatasetError
from rampline.jobs.exit_status import NO_DOWNLOAD, WRONG_INPUT
from rampline.jobs.job import Job
from rampline.worker import main


@pytest.fixture
def archive(make_folder, tmp_path):
    """Two classes with a validation split, as the nature archive has them, in one folder more."""
    root = make_folder({"nature/train/ants": 6, "nature/train/bees": 6, "nature/val/ants": 2, "nature/val/bees": 2})
    return shutil.make_archive(str(tmp_path / "nature"), "zip", root)


@pytest.fixture
def content(archive):
    with open(archive, "rb") as file:
        return file.read()


def test_an_archive_is_downloaded_once(store, content):
    with serve(content) as server:
        dataset = store(source=f"url:{server.url}", image_size=8, limit=4)
        assert dataset.splits == {"train": 8, "validation": 4}
        assert dataset.class_names == ("ants", "bees")
        assert dataset.directory.name.startswith("images-")
        assert any(line.startswith("downloading ") for line in store.lines)
        store(source=f"url:{server.url}", image_size=8, limit=4)
        assert store.lines[-1] == f"prepared already: {dataset.directory}"
        store(source=f"url:{server.url}", image_size=9)
    assert server.ranges == [""]


def test_with_a_checksum_the_archive_may_go_when_it_is_prepared(store, content, home):
    checksum = f"sha256:{hashlib.sha256(content).hexdigest().upper()}"
    with serve(content) as server:
        data = {"source": f"url:{server.url}", "checksum": checksum, "image_size": 8}
        dataset = store(**data)
        shutil.rmtree(home.data / "downloads")
        located = locate_prepared(DataConfig(**data), home)
    assert located is not None
    assert located.directory == dataset.directory


def test_a_mirror_is_asked_where_the_first_address_fails(store, content):
    with serve(content, status=404) as gone, serve(content) as mirror:
        store(source=f"url:{gone.url}", mirrors=(mirror.url,), image_size=8)
    assert (len(gone.ranges), len(mirror.ranges)) == (1, 1)


def test_a_page_in_place_of_the_archive_is_named_for_removal(store, content, home):
    with serve(b"<html>Please log in</html>") as server:
        with pytest.raises(DatasetError) as caught:
            store(source=f"url:{server.url}", image_size=8)
        (file,) = (home.data / "downloads").glob("*/images.zip")
        assert str(caught.value) == (
            f"{file} cannot be unpacked: File is not a zip file; remove {file} to have it downloaded again"
        )
        file.unlink()
        server.content = content
        assert store(source=f"url:{server.url}", image_size=8).class_names == ("ants", "bees")


@pytest.mark.parametrize(
    "url, message",
    [
        ("file:///etc/images.zip", "must be an address that begins with https:// or http://"),
        ("https://[::1/images.zip", "must be an address that begins with https:// or http://"),
        ("https://example.org:99999/images.zip", "must be an address that begins with https:// or http://"),
        ("https:///images.zip", "must be an address that begins with https:// or http://"),
        ("https://example.org/images", "its path must end in .zip, .tar, .tar.gz, .tgz"),
    ],
)
def test_other_addresses_are_refused_before_anything_is_loaded(home, url, message):
    with pytest.raises(DatasetError, match=message):
        locate_prepared(DataConfig(source=f"url:{url}"), home)


def test_checksum_and_mirrors_belong_to_url():
    with pytest.raises(ConfigError, match=r"data\.checksum='sha256:1' is not allowed: it must be sha256: and 64"):
        DataConfig(source="url:https://example.org/a.zip", checksum="sha256:1")
    with pytest.raises(ConfigError, match=r"data\.mirrors=.* left out unless data.source is url:URL"):
        DataConfig(mirrors=("https://example.org/a.zip",))


@pytest.mark.parametrize("status, ended", [(503, NO_DOWNLOAD), (404, WRONG_INPUT)])
def test_the_process_tells_whether_another_try_may_help(tmp_path, monkeypatch, status, ended):
    monkeypatch.setattr(web_archive, "PAUSE_SECONDS", 0.001)
    with serve(b"", status=status) as server:
        asked = {"data": {"source": f"url:{server.url}"}, "home": str(tmp_path / "home"), "scored_classes": None}
        Job(function="prepare", folder=tmp_path / "job", arguments=asked).write()
        assert main([str(tmp_path / "job")]) == ended
