"""`rampline up` as a user starts it, in a home and on ports of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import psutil
from command_line import RAMPLINE, environment_with
from prefect_rest import PrefectApi
from processes import processes_with

from rampline.devices import free_ports
from rampline.record.home import Home
from rampline.servers.running import Servers, read_state
from rampline.servers.secret import USER, secret_file

SECONDS = 280


class UpServers:
    """The servers of one home; nothing is started yet."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.home = Home(root=folder / "home")
        self.folder = folder
        self.prefect_port, self.mlflow_port = free_ports(2)
        self.environment = environment_with(self.home.root, environment)

    @property
    def options(self) -> list[str]:
        return ["--prefect-port", str(self.prefect_port), "--mlflow-port", str(self.mlflow_port)]

    @property
    def state(self) -> Servers:
        state = read_state(self.home)
        assert state is not None
        return state

    @property
    def api(self) -> PrefectApi:
        return PrefectApi(url=f"http://127.0.0.1:{self.prefect_port}/api", auth=f"{USER}:{self.secret}")

    @property
    def prefect(self) -> dict[str, str]:
        """The variables that lead a command to this Prefect server."""
        return {
            "PREFECT_HOME": str(self.home.root / "prefect"),
            "PREFECT_API_URL": self.api.url,
            "PREFECT_API_AUTH_STRING": self.api.auth,
        }

    @property
    def secret(self) -> str:
        return secret_file(self.home).read_text()

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A `rampline` command to its end."""
        command = [str(RAMPLINE), *arguments]
        place = {"cwd": self.folder, "env": self.environment | environment}
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, **place)

    def up(self, *options: str) -> str:
        """`rampline up --detach`, also where it is up already; returns what it says."""
        result = self.call("up", "--detach", *self.options, *options)
        assert (result.returncode, result.stderr) == (0, ""), result.stdout
        return result.stdout

    def processes(self) -> list[psutil.Process]:
        """All that know this home."""
        return processes_with(self.home.root)

    def stop(self) -> None:
        """End all of it, whatever became of it."""
        self.call("down")
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


def status_of(url: str, login: str = "", **headers: str) -> int:
    """HTTP status of a request for one object of a list, with `USER:PASSWORD`."""
    headers |= {"Content-Type": "application/json"}
    if login:
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    request = urllib.request.Request(url, b'{"limit": 1, "max_results": 1}', headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def parts(servers: UpServers) -> dict[str, list[int]]:
    """Process ids by the part of `rampline up` that they belong to."""
    found: dict[str, list[int]] = {}
    for process in servers.processes():
        with contextlib.suppress(psutil.Error):
            found.setdefault(process.environ().get("RAMPLINE_UP_PART", ""), []).append(process.pid)
    return found
