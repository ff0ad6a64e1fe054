"""Whether servers run: cheap where they do not, and never by a process that has got the number of another."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from rampline.record.home import Home
from rampline.record.provenance import process_identity
from rampline.servers.running import ProcessState, Servers, read_state, running_servers, state_file


@pytest.fixture
def home(tmp_path):
    return Home(root=tmp_path)


def servers_of(identity: str) -> Servers:
    return Servers(
        pid=os.getpid(),
        identity=identity,
        ready=True,
        prefect_api_url="http://127.0.0.1:9/api",
        mlflow_url="http://127.0.0.1:9",
        processes={"worker": ProcessState(pid=1, identity="host:1:2", log="worker.log")},
    )


def test_what_is_written_is_read(home):
    servers_of("host:2:3").write(state_file(home))
    assert read_state(home) == servers_of("host:2:3")
    assert set(json.loads(state_file(home).read_text())["processes"]["worker"]) == {"pid", "identity", "log"}


def test_a_file_of_an_earlier_version_which_says_more_is_read(home):
    servers_of("host:2:3").write(state_file(home))
    content = json.loads(state_file(home).read_text())
    state_file(home).write_text(json.dumps({**content, "started_at": "2026-01-31T12:00:00+00:00"}))
    assert read_state(home) == servers_of("host:2:3")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"processes": []}', '{"processes": {"a": {"pid": 1}}}'])
def test_a_damaged_file_is_none(home, text):
    home.root.joinpath("servers").mkdir()
    state_file(home).write_text(text)
    assert read_state(home) is None
    assert running_servers(home) is None


def test_another_process_with_the_number_is_not_it(home, http_server):
    there = {"prefect_api_url": http_server, "mlflow_url": http_server}
    dataclasses.replace(servers_of(process_identity()), **there).write(state_file(home))
    assert running_servers(home) is not None
    dataclasses.replace(servers_of(process_identity()[:-1]), **there).write(state_file(home))
    assert running_servers(home) is None


def test_servers_that_do_not_answer_or_are_starting_do_not_run(home, http_server):
    servers_of(process_identity()).write(state_file(home))
    assert running_servers(home) is None
    there = {"prefect_api_url": http_server, "mlflow_url": http_server, "ready": False}
    dataclasses.replace(servers_of(process_identity()), **there).write(state_file(home))
    assert running_servers(home) is None


def test_clients_get_the_passwords_of_the_servers(monkeypatch):
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "me:secret")
    monkeypatch.setenv("RAMPLINE_MLFLOW_PASSWORD", "servers")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "own")
    found = servers_of("host:2:3").client_environment()
    assert (found["PREFECT_API_AUTH_STRING"], found["MLFLOW_TRACKING_PASSWORD"]) == ("me:secret", "own")


def test_asking_loads_little():
    code = (
        "import sys, rampline.servers.running; print({'psutil', 'urllib.request', 'rich', 'mlflow'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
