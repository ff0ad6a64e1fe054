"""A Ray cluster of one node of this machine, which commands find by their environment."""

import contextlib
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from command_line import wait_until

from rampline.devices import free_ports

OPTIONS = ("--head", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats", "--block")
OPTIONS += ("--object-store-memory=100000000",)
# What `ray start --block` says last: its control store knows the node, and its address is written down.
STARTED = "This command will now block forever"
UP_SECONDS = 120


def make_address() -> dict[str, str]:
    """Where the cluster is to be, and the way in, as environment variables."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    return {"RAY_ADDRESS": f"127.0.0.1:{free_ports(1)[0]}", **token}


@contextlib.contextmanager
def ray_node(environment: Mapping[str, str], cpus: int, *options: str) -> Iterator[psutil.Process]:
    """The node's processes are below the one that is yielded; nothing of it is left after the block.

    `options` are further ones of `ray start`.
    """
    port = environment["RAY_ADDRESS"].rpartition(":")[2]
    # In the default folder others find its address; paths of sockets must be short.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    command = [str(Path(sys.executable).with_name("ray")), "start", f"--port={port}", f"--num-cpus={cpus}"]
    command += [*OPTIONS, *options, f"--temp-dir={folder}"]
    said = Path(folder) / "start.log"
    with open(said, "wb") as log:
        started = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_until(lambda: STARTED in said.read_text(), UP_SECONDS)
        yield psutil.Process(started.pid)
    finally:
        for process in [*psutil.Process(started.pid).children(recursive=True), started]:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        started.wait()
        shutil.rmtree(folder, ignore_errors=True)


def actors(node: psutil.Process) -> list[psutil.Process]:
    """Processes of actors that hold roles."""
    found = []
    for process in node.children(recursive=True):
        with contextlib.suppress(psutil.Error, IndexError):
            if process.cmdline()[0].startswith("ray::RoleHost"):
                found.append(process)
    return found
