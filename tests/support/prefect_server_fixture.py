"""A real Prefect server for the session, on a free loopback port, with a database of its own."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

START_SECONDS = 120


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running Prefect server: its address, and the variables that lead a command to it."""

    url: str
    prefect: dict[str, str]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started with the first test that asks for it: that takes 10 s."""
    home = tmp_path_factory.mktemp("prefect")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own = {"PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_CLI_PROMPT": "false"}
    command = [sys.executable, "-m", "rampline.servers.prefect_server", "--host", "127.0.0.1", "--port", str(port)]
    with open(home / "server.log", "w") as log:
        process = subprocess.Popen(command, env=kept | own, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"{url}/health")
        yield Server(url=url, prefect=own | {"PREFECT_API_URL": url})
    finally:
        process.terminate()
        process.wait(30)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise TimeoutError(url)
