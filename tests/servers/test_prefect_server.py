"""The Prefect server of one command: nobody else gets in while it runs."""

import json
import os
import signal
import socket
import subprocess
import sys

import psutil
import pytest
from command_line import environment_with, wait_until
from up_servers import status_of

CODE = """
import json, os, sys
from rampline.servers.prefect_server import start_prefect
from rampline.record.home import Home
start_prefect(Home.from_environment())()
names = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "RAMPLINE_OWN_PREFECT")
print(json.dumps([os.environ.get(name, ":") for name in names]), flush=True)
sys.stdin.read()
"""


def test_it_wants_the_commands_own_secret_and_no_foreign_page(tmp_path):
    # A password for `rampline up` changes nothing.
    environment = environment_with(tmp_path / "home", {"PREFECT_SERVER_API_AUTH_STRING": "team:password-1"})
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", CODE], env=environment, cwd=tmp_path, **pipes) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        url, login, own = json.loads(command.stdout.readline())
        assert own == "1"
        for path in ("/flows/filter", "/automations/filter", "/block_documents/filter"):
            assert status_of(url + path) == 401
            assert status_of(url + path, "team:password-1") == 401
            assert status_of(url + path, login, Origin="http://evil.example") == 403
            assert status_of(url + path, login, Host="evil.example") == 403
            assert status_of(url + path, login) == 200
        secret = login.partition(":")[2]
        # Of a process that has just ended psutil has none.
        lines = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
        assert not any(secret in argument for line in lines for argument in line)
        assert secret.encode() not in (tmp_path / "home" / "prefect" / "server.log").read_bytes()
        command.stdin.close()
    assert command.returncode == 0
    assert os.listdir(tmp_path) == ["home"]


STARTING = """
import os, sys
from rampline.servers.prefect_server import start_prefect
from rampline.record.home import Home
start_prefect(Home.from_environment())
print(os.environ["PREFECT_API_URL"], flush=True)
sys.stdin.read()
"""


def test_its_port_is_taken_before_it_answers_and_refuses_after_its_death(tmp_path):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", STARTING], env=environment_with(tmp_path), **pipes) as command:
        assert command.stdin is not None
        assert command.stdout is not None
        address = "127.0.0.1", int(command.stdout.readline().split(":")[2].partition("/")[0])
        with pytest.raises(OSError, match="in use"):
            socket.create_server(address)
        (server,) = psutil.Process(command.pid).children()
        assert str(address[1]) not in server.cmdline()
        server.send_signal(signal.SIGKILL)
        wait_until(lambda: server.status() == psutil.STATUS_ZOMBIE, 10)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        command.stdin.close()
