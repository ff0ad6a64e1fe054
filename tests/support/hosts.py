"""Several hosts on one machine: Linux network namespaces with own addresses, and a wire that can be cut or made bad.

The hosts share everything but the network: files, process ids, cores. Those with disks of their own have their own
processes and name, too, and can be switched off. Needs root, `ip` (iproute2) and `/dev/net/tun`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

WIRE_PROGRAM = Path(__file__).with_name("wire.py")
NAME_PREFIX = "rampline-test-"


@dataclass(kw_only=True, eq=False)
class Host:
    """One network namespace; with `disks` also one of mounts, processes and a name.

    Attributes:
        namespace: its name.
        address: its IPv4 address on the wire.
        name: host name.
        disks: folders that are empty when it is switched on, and nobody else's.
        pid: of its first process, where it has disks and is on.
    """

    namespace: str
    address: str
    name: str
    disks: Sequence[Path] = ()
    pid: int = 0
    _power: subprocess.Popen[str] | None = None

    def switch_on(self) -> None:
        """Give it its disks and its first process."""
        mounts = [f"mkdir -p {disk} && mount -t tmpfs none {disk}" for disk in self.disks]
        script = " && ".join(["mount --make-rprivate /", f"hostname {self.name}", *mounts, "echo up", "sleep infinity"])
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._power = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "unshare", *spaces, "sh", "-c", script],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._power.stdout
        assert self._power.stdout.readline() == "up\n", f"{self.name} is not switched on"
        (first,) = psutil.Process(self._power.pid).children()
        self.pid = first.pid

    def switch_off(self) -> None:
        """Take all its processes and files at once."""
        assert self._power
        os.kill(self.pid, signal.SIGKILL)
        self._power.communicate()
        self.pid = 0

    def see(self, path: Path) -> Path:
        """Where a path of this host is for the test."""
        return Path(f"/proc/{self.pid}/root", path.relative_to("/"))

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
        """`subprocess.Popen` in this host; where it has no disks the process is the command itself, and its pid."""
        return subprocess.Popen(self._command(command), **options)

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """`subprocess.run` in this host, with the output as text."""
        return subprocess.run(self._command(command), capture_output=True, text=True, check=False, **options)

    def pids(self) -> list[int]:
        """Processes that use this host's network."""
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def _command(self, command: Sequence[str]) -> list[str]:
        if self.pid:
            return ["nsenter", f"--target={self.pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--", *command]
        return ["ip", "netns", "exec", self.namespace, *command]


class Hosts:
    """Hosts and the wire between them, see `make_hosts`."""

    def __init__(self, hosts: Sequence[Host], wire: subprocess.Popen[str]) -> None:
        self.hosts = tuple(hosts)
        self._wire = wire
        self._cut = set[str]()

    def __iter__(self) -> Iterator[Host]:
        return iter(self.hosts)

    def cut(self, *hosts: Host) -> None:
        """Lose every packet from and to these hosts, or all, in silence: no reset and no ICMP tells either side."""
        self._cut |= {host.address for host in hosts or self.hosts}
        self.degrade()

    def heal(self) -> None:
        """Neither delay nor loss."""
        self._cut.clear()
        self.degrade()

    def power_off(self, host: Host) -> None:
        """Without a last word: the link goes first."""
        self.cut(host)
        host.switch_off()

    def degrade(self, *, delay_ms: float = 0, loss_percent: float = 0, mbit: float = 0) -> None:
        """Delay every packet, lose some, and send so many Mbit/s (0: any): a round trip takes twice `delay_ms`."""
        assert self._wire.stdin
        assert self._wire.stdout
        line = {"delay_ms": delay_ms, "loss_percent": loss_percent, "mbit": mbit, "cut": sorted(self._cut)}
        self._wire.stdin.write(json.dumps(line) + "\n")
        self._wire.stdin.flush()
        self._wire.stdout.readline()


@dataclass(kw_only=True)
class Commands:
    """Commands on hosts, and what a test waits for meanwhile.

    Attributes:
        logs: folder with what they print.
    """

    logs: Path

    def have_failed(self) -> bool:
        """Whether one of those that the test waits for has ended with an error."""
        return False

    def said(self) -> str:
        """What they have printed, for the message of a test that fails."""
        return last_words(self.logs)

    def wait_for(self, condition: Callable[[], object], seconds: float, what: str) -> float:
        """Seconds until `condition()` is true."""
        started = time.monotonic()
        while not condition():
            waited = time.monotonic() - started
            assert waited < seconds, f"not within {seconds} s: {what}\n{self.said()}"
            assert not self.have_failed(), f"a command failed\n{self.said()}"
            time.sleep(0.1)
        return time.monotonic() - started


def last_words(folder: Path) -> str:
    """The ends of the logs in a folder."""
    files = sorted(folder.glob("*.log"))
    return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-2500:]}" for file in files)


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
def make_hosts(count: int = 2, disks: Sequence[Path] = ()) -> Iterator[Hosts]:
    """Hosts 10.213.0.1, 10.213.0.2, … that reach each other and nothing else.

    The addresses exist in the namespaces alone, so that they clash with nothing. Whatever ends the block, the processes
    in the hosts are killed and nothing of the network is left; what a killed test left is removed by the next one.
    """
    _remove_leftovers()
    prefix = f"{NAME_PREFIX}{os.getpid()}"
    hosts = [
        Host(namespace=f"{prefix}-{i}", address=f"10.213.0.{i + 1}", name=f"h{i}", disks=disks) for i in range(count)
    ]
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
            if disks:
                host.switch_on()
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
