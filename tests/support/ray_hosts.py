"""A Ray cluster on hosts with disks of their own: a head without CPUs, and nodes of one CPU; and a run on it."""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from hosts import Commands, Host, Hosts, make_hosts
from processes import processes_of

from rampline.jobs.ray_cluster import SETTINGS
from rampline.record.run_directory import RunDirectory

BIN = Path(sys.executable).parent
PORT = 6379
UP_SECONDS = 240
# Less to start on few cores.
QUIET = {
    "RAY_AUTH_MODE": "token",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_memory_monitor_refresh_ms": "0",
    # As of two local workers on two cores: with another number sums have other bits.
    "TF_NUM_INTRAOP_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}
OPTIONS = ("--include-log-monitor=false", "--disable-usage-stats", "--object-store-memory=100000000", "--block")
COUNT = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(*(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]))
"""
SUPERVISE = """
import signal, sys
from pathlib import Path
from rampline.errors import RamplineError
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory
def stop(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, stop)
try:
    supervise(RunDirectory(Path(sys.argv[1])), on_event=lambda event: None, log=print)
except RamplineError as error:
    sys.exit(f"error: {error}")
"""


@dataclass(kw_only=True)
class RayHosts(Commands):
    """The first host is the head.

    Attributes:
        disk: a folder that each host has for itself.
    """

    hosts: Hosts
    disk: Path
    environment: dict[str, str] = field(default_factory=dict)
    _daemons: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environment = {**os.environ, **SETTINGS, **QUIET, "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.head, *self.nodes = self.hosts

    def start(self, host: Host, command: list[str], name: str, **environment: str) -> subprocess.Popen:
        """Start a command on a host; what it prints goes to a log of that name."""
        with open(self.logs / f"{name}.log", "ab") as log:
            return host.start(command, env={**self.environment, **environment}, stdout=log, stderr=log)

    def start_head(self, host: Host) -> None:
        """From now on this is the head."""
        self.head = host
        self.environment["RAY_ADDRESS"] = f"{host.address}:{PORT}"
        self._start_ray(host, "--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false")

    def start_node(self, host: Host) -> None:
        """Let a host join, and wait until it has: several that start at once take too long for Ray."""
        self._start_ray(host, f"--address={self.head.address}:{PORT}", "--num-cpus=1")
        self.wait_for(lambda: host.address in self.alive(), UP_SECONDS, f"{host.name} joins")

    def alive(self) -> list[str]:
        """Addresses of the nodes that Ray believes to be alive."""
        asked = self.head.run([sys.executable, "-c", COUNT, f"{self.head.address}:{PORT}"], env=self.environment)
        return asked.stdout.split()

    def mend(self) -> None:
        """Switch on, heal and start what is missing."""
        self.hosts.heal()
        for host in self.hosts:
            if not host.pid:
                host.switch_on()
        first = self.hosts.hosts[0]
        alive = self.alive() if self.head is first and self._is_running(first) else []
        if not alive:
            for host in self.hosts:
                self.end_ray(host)
            self.start_head(first)
        for host in self.nodes:
            if host.address not in alive or not self._is_running(host):
                self.end_ray(host)
                self.start_node(host)

    def raylet(self, host: Host) -> int:
        """Its process id."""
        return next(pid for pid in host.pids() if psutil.Process(pid).name() == "raylet")

    def roles(self, host: Host) -> list[int]:
        """Processes of roles there."""
        return sorted({*host.pids()} & {*processes_of(self.disk, "rampline.worker")})

    def _start_ray(self, host: Host, *options: str) -> None:
        command = [str(BIN / "ray"), "start", f"--node-ip-address={host.address}", *options, *OPTIONS]
        self._daemons[host.name] = self.start(host, command, f"ray-{host.name}")

    def _is_running(self, host: Host) -> bool:
        daemon = self._daemons.get(host.name)
        return daemon is not None and daemon.poll() is None

    def end_ray(self, host: Host) -> None:
        """End its daemons."""
        host.run([str(BIN / "ray"), "stop", "--force"], env=self.environment)
        if daemon := self._daemons.pop(host.name, None):
            daemon.kill()
            daemon.wait()


@dataclass(kw_only=True)
class RayRun(Commands):
    """A run that a command on one of the hosts supervises.

    Attributes:
        directory: as this process sees it.
        at: its path on the host.
    """

    cluster: RayHosts
    host: Host
    at: Path
    command: subprocess.Popen

    @property
    def directory(self) -> RunDirectory:
        return RunDirectory(self.host.see(self.at))

    def events(self, kind: str, *, since: float = 0.0) -> list[dict[str, Any]]:
        """What the chief told after `since`, in the time of `time.time()`."""
        return [event for event in self.directory.read_events(kind) if event["time"] > since]

    def have_failed(self) -> bool:
        return bool(self.command.poll())

    def driver(self) -> int:
        """Its process id: `nsenter` waits for it."""
        return psutil.Process(self.command.pid).children()[0].pid

    def signal_driver(self, number: signal.Signals) -> None:
        """Signal the command itself."""
        os.kill(self.driver(), number)


def supervise_on(cluster: RayHosts, host: Host, at: Path, name: str) -> RayRun:
    """Supervise the run directory `at` on a host."""
    command = cluster.start(host, [sys.executable, "-c", SUPERVISE, str(at)], name)
    return RayRun(logs=cluster.logs, cluster=cluster, host=host, at=at, command=command)


@contextmanager
def make_ray_hosts(scratch: Path) -> Iterator[RayHosts]:
    """Four hosts whose disks and temporary files are their own; nothing runs on them yet."""
    disk, logs = scratch / "disk", scratch / "logs"
    logs.mkdir()
    with make_hosts(4, disks=(disk, Path("/tmp/ray"), Path("/dev/shm"))) as hosts:
        yield RayHosts(hosts=hosts, disk=disk, logs=logs)


def put(source: Path, host: Host, target: Path) -> None:
    """Copy a folder to a path of a host."""
    shutil.copytree(source, host.see(target))
