import socket

import pytest
import typer

from rampline.cli.doctor import Finding, doctor, examine
from rampline.jobs.private_network import SHARED, other_users, private_network
from rampline.record.home import Home


def finding(subject: str, home: Home) -> Finding:
    return next(found for found in examine(home) if found.subject == subject)


def test_this_machine_passes_and_nothing_is_made(tmp_path):
    home = Home(root=tmp_path / "home")
    assert [found for found in examine(home) if found.status == "fail"] == []
    assert not home.root.exists()


def test_a_server_that_does_not_answer_fails(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/api"
        monkeypatch.setenv("PREFECT_API_URL", url)
        assert finding("Prefect", Home(root=tmp_path)).status == "ok"
    found = finding("Prefect", Home(root=tmp_path))
    assert (found.status, found.remedy) == ("fail", "start that server, or unset PREFECT_API_URL")


@pytest.mark.parametrize(
    "text,status", [('{"task": {"type": "worker", "index": 1}}', "ok"), ("{", "fail"), ("[]", "fail")]
)
def test_tf_config_is_looked_at(text, status, tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", text)
    assert finding("TF_CONFIG", Home(root=tmp_path)).status == status


def test_a_home_that_is_a_file_fails(tmp_path):
    (tmp_path / "file").write_text("")
    assert finding("RAMPLINE_HOME", Home(root=tmp_path / "file")).status == "fail"


def test_a_path_is_printed_as_it_is(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "file/[old]/home"))
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(typer.Exit):
        doctor()
    assert f"{tmp_path}/file/[old]/home cannot be written to" in capsys.readouterr().out


def test_other_users_are_told_of_with_what_keeps_them_out(tmp_path):
    found = finding("other users", Home(root=tmp_path))
    others = other_users()
    assert found.status == ("warn" if others else "ok")
    assert all(name in found.text for name in others)
    kept_out = "get a network" if private_network() is not SHARED else "cannot have a network"
    assert kept_out in found.text


def test_a_store_can_be_written_to_or_fails(s3, tmp_path, monkeypatch):
    found = finding("store", Home(root=tmp_path))
    assert (found.status, found.text) == ("ok", f"RAMPLINE_STORE={s3.url} can be written to")
    monkeypatch.setenv("RAMPLINE_STORE", "s3://no-such-bucket")
    found = finding("store", Home(root=tmp_path))
    assert found.status == "fail"
    assert "NO_SUCH_BUCKET" in found.text
