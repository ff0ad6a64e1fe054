"""A network of their own for roles that are all on this machine.

TensorFlow's gRPC servers let in everybody who reaches them, and on 127.0.0.1 that is every user of the machine. In a
network namespace of Linux, only what this process starts there does. It is made without rights: for all but root a user
namespace is around it, in which the user and all files are the same. Where the kernel or the container's settings
forbid that, roles stay on the machine's own loopback interface.
"""

from __future__ import annotations

import functools
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil

# In a process of its own, because one with threads cannot make a user namespace. It ends at once: open files of this
# process keep the namespaces, and end with it.
MAKE = """
import ctypes, fcntl, os, socket, struct, sys
NEW_USER, NEW_NET, SET_FLAGS, UP_AND_RUNNING = 0x10000000, 0x40000000, 0x8914, 0x41
user, group, libc = os.geteuid(), os.getegid(), ctypes.CDLL(None, use_errno=True)
if libc.unshare(NEW_NET | (NEW_USER if user else 0)):
    sys.exit(os.strerror(ctypes.get_errno()))
if user:
    for name, text in ("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1"):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))
print("made", flush=True)
sys.stdin.read()
"""
FIRST_PERSON, NOBODY = (501 if sys.platform == "darwin" else 1000), 65534
NO_LOGIN = ("", "nologin", "false", "sync")


@dataclass(frozen=True, kw_only=True)
class Network:
    """How a process is started in a network; without values, in this process's own.

    Attributes:
        command: goes before the command, and becomes it: process id, group and session stay.
        descriptors: open files that the process must get.
        environment: what it must have beside its environment.
    """

    command: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


SHARED = Network()


@functools.cache
def private_network() -> Network:
    """The network that the roles of this process have to themselves; `SHARED` where there can be none."""
    if not sys.platform.startswith("linux"):
        return SHARED
    try:
        network = _make()
        # Whether it can be entered, and Python be reached from there, is for kernel and container to say.
        subprocess.run(
            [*network.command, sys.executable, "-I", "-S", "-c", ""],
            pass_fds=network.descriptors,
            check=True,
            capture_output=True,
        )
    except (OSError, subprocess.SubprocessError):
        return SHARED
    return network


def _make() -> Network:
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", MAKE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as maker:
        if not maker.stdout or maker.stdout.readline() != b"made\n":
            raise OSError("network namespaces are forbidden here")
        kinds = ("net",) if os.geteuid() == 0 else ("user", "net")
        opened = {kind: os.open(f"/proc/{maker.pid}/ns/{kind}", os.O_RDONLY) for kind in kinds}
    entrances = [f"--{kind}=/proc/self/fd/{descriptor}" for kind, descriptor in opened.items()]
    return Network(
        command=("nsenter", "--preserve-credentials", *entrances, "--"),
        descriptors=tuple(opened.values()),
        # A cluster's setting names an interface that is not there; NCCL passes over this one unless it is named.
        environment={"NCCL_SOCKET_IFNAME": "lo"},
    )


def other_users() -> list[str]:
    """Who else can log in on this machine or has processes here, root and the accounts of services left out."""
    accounts = {entry.pw_uid: entry for entry in pwd.getpwall()}
    present = {uid for uid, entry in accounts.items() if os.path.basename(entry.pw_shell) not in NO_LOGIN}
    present |= {process.info["uids"].real for process in psutil.process_iter(["uids"]) if process.info["uids"]}
    people = sorted(uid for uid in present if FIRST_PERSON <= uid < NOBODY and uid != os.geteuid())
    return [accounts[uid].pw_name if uid in accounts else f"uid {uid}" for uid in people]
