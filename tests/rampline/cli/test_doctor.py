import pytest
import typer
from file_server import serve

from rampline.cli.doctor import Finding, _bounds, doctor, examine
from rampline.jobs.private_network import SHARED, other_users, private_network
from rampline.record.home import Home


def finding(subject: str, home: Home) -> Finding:
    return next(found for found in examine(home) if found.subject == subject)


def test_this_machine_passes_and_nothing_is_made(tmp_path):
    home = Home(root=tmp_path / "home")
    assert [found for found in examine(home) if found.status == "fail"] == []
    assert not home.root.exists()


@pytest.mark.parametrize("package, allowed", [("keras", "<3.16,>=3.15.1"), ("h5py", ">=3.11"), ("ray", "<2.61,>=2.60")])
def test_a_version_outside_the_bounds_fails(package, allowed, tmp_path, monkeypatch):
    """Of a package that is always told, of another one, and of an extra's."""
    metadata = tmp_path / f"{package}-2.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 2.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = finding(package, Home(root=tmp_path))
    assert (found.status, found.text) == ("fail", f"2.0, which is not {allowed}")
    assert found.remedy == f"run `make setup`, or `pip install '{package}{allowed}'`"


def test_what_an_extra_needs_is_told_of_where_it_is_installed_alone():
    assert "nvidia-ml-py" not in _bounds()
    assert {"ray", "psycopg2-binary"} < set(_bounds())


def test_a_server_that_does_not_answer_fails(tmp_path, monkeypatch):
    with serve(b"", status=401) as server:
        address = server.url.removeprefix("http://").removesuffix("/images.zip")
        monkeypatch.setenv("PREFECT_API_URL", f"http://me:secret@{address}/api")
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
