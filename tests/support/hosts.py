"""Several hosts on one machine: Linux network namespaces with own addresses, and a wire that can be cut or made bad.

The hosts share everything but the network: files, process ids, cores. Needs root, `ip` (iproute2) and `/dev/net/tun`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

WIRE_PROGRAM = Path(__file__).with_name("wire.py")
NAME_PREFIX = "rampline-test-"


@dataclass(frozen=True, kw_only=True)
class Host:
    """One network namespace.

    Attributes:
        namespace: its name.
        address: its IPv4 address on the wire.
    """

    namespace: str
    address: str

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """`subprocess.Popen` in this host; the process is the command itself, so its pid and status are."""
        return subprocess.Popen(self._command(command), **options)

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """`subprocess.run` in this host, with the output as text."""
        return subprocess.run(self._command(command), capture_output=True, text=True, check=False, **options)

    def pids(self) -> list[int]:
        """Processes that use this host's network."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def _command(self, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]


class Hosts:
    """Hosts and the wire between them, see `make_hosts`."""

    def __init__(self, hosts: Sequence[Host], wire: subprocess.Popen[str]) -> None:
        self.hosts = tuple(hosts)
        self._wire = wire

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def cut(self) -> None:
        """Lose every packet from now on in silence: no reset and no ICMP tells either side."""
        self.degrade(loss_percent=100)

    def heal(self) -> None:
        """Neither delay nor loss."""
        self.degrade()

    def degrade(self, *, delay_ms: float = 0, loss_percent: float = 0) -> None:
        """Delay every packet, and lose some, in each direction: a round trip takes twice `delay_ms`."""
        assert self._wire.stdin
        assert self._wire.stdout
        self._wire.stdin.write(json.dumps({"delay_ms": delay_ms, "loss_percent": loss_percent}) + "\n")
        self._wire.stdin.flush()
        self._wire.stdout.readline()


def why_not() -> str | None:
    """Why no hosts can be made here, one line; `None` where they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts in network namespaces need Linux and root"
    if shutil.which("ip") is None:
        return "hosts in network namespaces need `ip`: apt-get install iproute2"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "hosts in network namespaces need /dev/net/tun"
    made = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces are not allowed here: {made.stderr.strip()}" if made.returncode else None


@contextlib.contextmanager
def make_hosts(count: int = 2) -> Iterator[Hosts]:
    """Hosts 10.213.0.1, 10.213.0.2, … that reach each other and nothing else.

    The addresses exist in the namespaces alone, so that they clash with nothing. Whatever ends the block, the processes
    in the hosts are killed and nothing of the network is left; what a killed test left is removed by the next one.
    """
    _remove_leftovers()
    hosts = [Host(namespace=f"{NAME_PREFIX}{os.getpid()}-{i}", address=f"10.213.0.{i + 1}") for i in range(count)]
    with contextlib.ExitStack() as stack:
        for host in hosts:
            stack.callback(_remove, host.namespace)
            _ip("netns", "add", host.namespace)
        wire = stack.enter_context(_start_wire(hosts))
        for host in hosts:
            _ip("-n", host.namespace, "link", "set", "lo", "up")
            # Without a queue of its own this device would lose packets whenever the wire is late.
            _ip("-n", host.namespace, "link", "set", "wire0", "txqueuelen", "10000", "up")
            _ip("-n", host.namespace, "address", "add", f"{host.address}/24", "dev", "wire0")
        yield Hosts(hosts, wire)


@contextlib.contextmanager
def _start_wire(hosts: Sequence[Host]) -> Iterator[subprocess.Popen[str]]:
    ends = [f"{host.namespace}={host.address}" for host in hosts]
    command = [sys.executable, str(WIRE_PROGRAM), *ends]
    wire = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert wire.stdout
        if not wire.stdout.readline():
            raise OSError(f"the wire did not start: {' '.join(command)}")
        yield wire
    finally:
        wire.kill()
        wire.communicate()


def _remove_leftovers() -> None:
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        owner = name.removeprefix(NAME_PREFIX).partition("-")[0]
        if name.startswith(NAME_PREFIX) and not psutil.pid_exists(int(owner)):
            _remove(name)


def _remove(namespace: str) -> None:
    if not Path("/run/netns", namespace).exists():
        return
    for pid in _ip("netns", "pids", namespace).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _ip("netns", "delete", namespace)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
