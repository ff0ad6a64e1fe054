"""Hosts with disks of their own, a study on one of them, and an S3 server on the last."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from hosts import Commands, Host, Hosts, make_hosts
from s3_server import VARIABLES

from rampline.record.run_directory import RunDirectory

RAMPLINE = str(Path(sys.executable).with_name("rampline"))
PORT = 5000
SERVE = f"""
import logging, signal, sys, urllib.request
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
ThreadedMotoServer(ip_address="0.0.0.0", port={PORT}, verbose=False).start()
urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:{PORT}/bucket", method="PUT"))
print("up", flush=True)
signal.pause()
"""
# What a machine that begins now would find: the owner, and the last step of every run.
LOOK = """
import sys
from rampline.record.object_store import ObjectStore
from rampline.study.stored_execution import Manifest, owners_of
store = ObjectStore.from_environment()
found = Manifest.newest(store, sys.argv[1])
steps = [int(name.split("/")[3][5:]) for name in found.files if name.endswith("/progress.json")] if found else []
print(found.owner if found else "none", max(steps, default=0), *owners_of(store, sys.argv[1]))
"""


@dataclass(kw_only=True)
class StoredHosts(Commands):
    """Two hosts that train, and one with the store.

    Attributes:
        home: `RAMPLINE_HOME`, on the disk of each host.
    """

    hosts: Hosts
    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        *self.machines, self.server = self.hosts
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
        store = {"AWS_ENDPOINT_URL": f"http://{self.server.address}:{PORT}", "RAMPLINE_STORE": "s3://bucket/team"}
        self.environment = {**kept, **VARIABLES, **store, "RAMPLINE_HOME": str(self.home), "COLUMNS": "200"}

    def run(self, host: Host, *arguments: str) -> subprocess.Popen:
        """Start `rampline run ARGUMENTS` there."""
        with open(self.log(host), "ab") as log:
            options = {"env": self.environment, "stdout": log, "stderr": log, "cwd": self.logs}
            return host.start([RAMPLINE, "run", *arguments], **options)

    def log(self, host: Host) -> Path:
        return self.logs / f"{host.name}.log"

    def directory(self, host: Host, execution: str, run: str) -> RunDirectory:
        """A run directory on a host, as this process sees it."""
        return RunDirectory(host.see(self.home) / "runs" / execution / run)

    def look(self, execution: str) -> tuple[str, int, list[str]]:
        """Whose state of the execution counts in the store, its last step, and all owners."""
        asked = self.server.run([sys.executable, "-c", LOOK, f"runs/{execution}"], env=self.environment)
        assert not asked.returncode, asked.stderr
        owner, step, *owners = asked.stdout.split()
        return owner, int(step), owners


def processes_below(command: subprocess.Popen) -> list[psutil.Process]:
    """All that a command on a host has started, itself included: `nsenter` waits for it."""
    return psutil.Process(command.pid).children(recursive=True)


@contextmanager
def make_stored_hosts(scratch: Path) -> Iterator[StoredHosts]:
    """All that a host keeps is on its disk below `scratch`; nothing runs but the store."""
    disk, logs = scratch / "disk", scratch / "logs"
    logs.mkdir(parents=True)
    with make_hosts(3, disks=(disk,)) as hosts:
        made = StoredHosts(hosts=hosts, home=disk / "home", logs=logs)
        serve = made.server.start([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True)
        with serve:
            assert serve.stdout
            assert serve.stdout.readline() == "up\n"
            yield made
            serve.kill()
