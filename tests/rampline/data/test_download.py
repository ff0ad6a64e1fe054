"""Downloads from a real server on loopback that breaks off, lies, knows no ranges, redirects, or is slow."""

import hashlib
import random
import re
import socket

import httpx
import pytest
from file_server import serve
from small_disk import small_disk

from rampline.data.sources import web_archive as module
from rampline.data.sources.web_archive import download
from rampline.errors import DatasetError, DownloadFailed

CONTENT = random.Random(0).randbytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.001)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "downloads/images.zip"


def fetch(path, *servers, checksum: str | None = SHA256):
    lines = []
    download([server.url for server in servers], path, checksum=checksum, tell=lines.append)
    assert path.read_bytes() == CONTENT
    assert list(path.parent.iterdir()) == [path], "nothing is left beside it"
    return lines


def refused(path, *servers, checksum: str | None = SHA256):
    with pytest.raises(DatasetError) as refusal:
        download([server.url for server in servers], path, checksum=checksum, tell=lambda line: None)
    assert not path.exists()
    # Another try may help where one has not answered, and nowhere else.
    assert isinstance(refusal.value, DownloadFailed) == ("does not answer" in str(refusal.value))
    return str(refusal.value)


def test_the_size_is_told_first_and_what_is_there_stays(path):
    with serve(CONTENT) as server:
        assert fetch(path, server)[0] == f"downloading 3.00 MB from {server.url.split('/')[2]}"
        assert fetch(path, server) == []
    assert server.ranges == [""]


def test_without_a_checksum_the_one_that_came_is_told(path):
    with serve(CONTENT) as server:
        assert fetch(path, server, checksum=None)[-1].endswith(f"is sha256:{SHA256}")


def test_a_download_that_breaks_off_goes_on_where_it_was(path):
    with serve(CONTENT, break_after=[1_000_000, 500_000]) as server:
        lines = fetch(path, server, checksum=None)
    assert server.ranges == ["", "bytes=1000000-", "bytes=1500000-"]
    assert any("broke off at 1.00 MB of 3.00 MB; trying again" in line for line in lines)
    assert any(re.fullmatch(r"downloading 3.00 MB from \S+, 1.50 MB of it are there", line) for line in lines)


def test_a_download_of_a_process_that_died_goes_on(path, monkeypatch):
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    monkeypatch.setattr(module, "TELL_SECONDS", 0.0)
    with serve(CONTENT) as server:

        def die(line):
            if line.startswith("downloaded"):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            download([server.url], path, checksum=None, tell=die)
        assert not path.exists()
        fetch(path, server, checksum=None)
    assert re.fullmatch(r"bytes=[1-9]\d*-", server.ranges[1])


def test_what_changed_on_the_server_meanwhile_is_taken_from_its_beginning(path):
    with serve(CONTENT[::-1], break_after=[1_000_000] + [0] * 5) as server:
        refused(path, server, checksum=None)
        server.content, server.tag = CONTENT, '"two"'
        fetch(path, server, checksum=None)
    assert server.ranges[-1] == "bytes=1000000-"


@pytest.mark.parametrize("ways", [{"knows_ranges": False}, {"tag": ""}])
def test_without_ranges_or_a_tag_it_begins_anew(path, ways):
    with serve(CONTENT, break_after=[1_000_000], **ways) as server:
        fetch(path, server, checksum=None)
    assert server.ranges == ["", "bytes=1000000-" if server.tag else ""]


def test_a_checksum_stands_for_the_tag(path):
    with serve(CONTENT, break_after=[1_000_000], tag="") as server:
        fetch(path, server)
    assert server.ranges == ["", "bytes=1000000-"]


def test_a_part_that_was_complete_is_not_loaded_again(path):
    with serve(CONTENT) as server:
        fetch(path, server)
        part = path.with_name(f".{hashlib.sha256(server.url.encode()).hexdigest()[:16]}.part")
        path.rename(part)
        fetch(path, server)
    assert server.ranges == ["", "bytes=3000000-"]


def test_another_checksum_is_refused_and_nothing_stays(path):
    other = "0" * 64
    with serve(CONTENT) as server:
        assert f"is not the file of data.checksum: it has sha256:{SHA256}" in refused(path, server, checksum=other)
    assert list(path.parent.iterdir()) == []


def test_what_is_there_must_have_a_checksum_that_is_set_later(path):
    with serve(CONTENT) as server:
        fetch(path, server, checksum=None)
        fetch(path, server)
        with pytest.raises(DatasetError, match=f"images.zip has sha256:{SHA256}, not data.checksum: remove it"):
            fetch(path, server, checksum="0" * 64)
    assert server.ranges == [""]


def test_a_mirror_takes_over_from_one_that_lies_and_one_that_is_gone(path):
    with serve(CONTENT[:-1]) as liar, serve(CONTENT, status=404) as gone, serve(CONTENT) as mirror:
        lines = fetch(path, liar, gone, mirror)
    assert any("is not the file of data.checksum" in line for line in lines)
    assert f"{gone.url} answers 404 Not Found" in lines


def test_nothing_is_left_of_what_an_address_gave_a_part_of(path):
    with serve(CONTENT, break_after=[1_000_000] + [0] * 5) as gone, serve(CONTENT) as mirror:
        fetch(path, gone, mirror)


def test_a_login_is_that_of_netrc_and_goes_to_its_host_alone(path, monkeypatch):
    monkeypatch.setenv("NETRC", str(path.with_name("netrc")))
    path.parent.mkdir()
    path.with_name("netrc").write_text("machine data.example login me password hunter2\n")
    part = module._Part(url="https://data.example/images.zip", path=path)
    with module._client(part) as client:
        assert client.auth
        asked = [next(client.auth.auth_flow(httpx.Request("GET", url))) for url in (part.url, "https://other.example/")]
    assert [request.headers.get("Authorization") for request in asked] == ["Basic bWU6aHVudGVyMg==", None]
    path.with_name("netrc").write_text("hunter2")
    with pytest.raises(DatasetError, match=r"netrc cannot be read: its line 1 has another form$"):
        module._client(part)


def test_a_server_that_is_down_is_asked_five_times(path):
    with serve(CONTENT, status=503) as server:
        message = refused(path, server)
    assert message == (
        f"images.zip cannot be downloaded: {server.url} does not answer, 5 times in a row: 503 Service Unavailable"
    )
    assert len(server.ranges) == 5


@pytest.mark.parametrize("error, kind", [(socket.EAI_NONAME, DatasetError), (socket.EAI_AGAIN, DownloadFailed)])
def test_a_name_that_nobody_knows_is_a_mistake_and_no_answer_from_the_server_of_names_is_none(
    path, monkeypatch, error, kind
):
    def look_up(*_args, **_options):
        raise socket.gaierror(error, "said the server of names")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with pytest.raises(DatasetError, match=r"5 times in a row: \[Errno .*said the server of names") as refusal:
        download(["http://images.invalid/images.zip"], path, checksum=None, tell=lambda line: None)
    assert type(refusal.value) is kind


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/images.zip"])
def test_a_redirect_to_anything_but_http_is_refused(path, target):
    with serve(CONTENT, redirect=target) as server:
        assert f"{server.url} redirects to {target}, which is refused" in refused(path, server)
    assert len(server.ranges) == 1


def test_a_redirect_to_another_server_is_followed(path):
    with serve(CONTENT, break_after=[1_000_000]) as far, serve(CONTENT, redirect=far.url) as near:
        fetch(path, near)
    assert far.ranges == ["", "bytes=1000000-"]


def test_more_than_the_disk_has_is_refused_before_it_is_loaded(path, monkeypatch):
    monkeypatch.setattr(module, "KEPT_FREE_SHARE", 1.0)
    with serve(CONTENT) as server:
        assert "no room for the download: 3.00 MB" in refused(path, server)


def test_a_disk_that_fills_up_meanwhile_is_told_and_not_asked_again(path, monkeypatch):
    monkeypatch.setattr(module, "KEPT_FREE_SHARE", -1.0)  # as with a quota, which the free space does not say
    with small_disk(path.parent, 2), serve(CONTENT) as server:
        assert refused(path, server).endswith("cannot be written: [Errno 28] No space left on device")
    assert len(server.ranges) == 1
