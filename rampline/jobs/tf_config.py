"""TF_CONFIG: which roles a run has and which of them this process is."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from rampline.config import RunConfig
from rampline.errors import ClusterConfigError

ROLES = ("chief", "worker", "ps")
# Thousands of workers fit in.
LONGEST_TEXT = 2**20
LONGEST_SHOWN = 80
LONGEST_ADDRESS = 300
ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\]):(?P<port>[1-9][0-9]{0,4})")


@dataclass(frozen=True, kw_only=True)
class Task:
    """This process's place in the cluster.

    Attributes:
        cluster: `host:port` of every process, by role.
        role: `chief`, `worker` or `ps`.
        index: position among the processes of that role.
    """

    cluster: Mapping[str, tuple[str, ...]]
    role: str
    index: int

    @property
    def name(self) -> str:
        """`ROLE-INDEX`, as in the names of logs."""
        return f"{self.role}-{self.index}"

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and events: the chief, or worker 0 where there is none."""
        return self.role == "chief" or (self.role == "worker" and self.index == 0 and "chief" not in self.cluster)

    @property
    def address(self) -> str:
        """`host:port` that the others reach this process by."""
        return self.cluster[self.role][self.index]

    @property
    def host(self) -> str:
        """Name or IPv4 or IPv6 address in it."""
        return self.address.rpartition(":")[0]

    @property
    def is_on_loopback(self) -> bool:
        """Whether all processes talk on this machine's loopback addresses."""
        hosts = [address.rpartition(":")[0] for addresses in self.cluster.values() for address in addresses]
        return all(map(_is_loopback, hosts))

    @property
    def network_warning(self) -> str | None:
        """One line for the user where the cluster is on a network: TensorFlow's servers let anybody in."""
        if self.is_on_loopback:
            return None
        return (
            "TensorFlow's gRPC server has no authentication and listens on every interface "
            f"(port of {self.address}): use a private network"
        )

    @property
    def worker_number(self) -> int:
        """Position among all processes that train synchronously: the chief, then the workers."""
        return self.index + (1 if self.role == "worker" and "chief" in self.cluster else 0)

    @property
    def workers(self) -> int:
        """How many processes train: the chief too, unless there are parameter servers."""
        chiefs = 0 if "ps" in self.cluster else len(self.cluster.get("chief", ()))
        return chiefs + len(self.cluster.get("worker", ()))

    @property
    def roles(self) -> int:
        """How many processes there are in all."""
        return sum(map(len, self.cluster.values()))

    def to_json(self) -> str:
        """The text for the TF_CONFIG environment variable."""
        return json.dumps({"cluster": dict(self.cluster), "task": {"type": self.role, "index": self.index}})


def tasks_of(cluster: Mapping[str, tuple[str, ...]]) -> list[Task]:
    """The place of each process of a cluster, in its order."""
    return [Task(cluster=cluster, role=role, index=i) for role, own in cluster.items() for i in range(len(own))]


# A process that is a whole run.
ALONE = Task(cluster={"chief": ("127.0.0.1:0",)}, role="chief", index=0)


def parse_tf_config(text: str, config: RunConfig) -> Task:
    """Read TF_CONFIG and check it against the run.

    Raises:
        ClusterConfigError: one line that says what is wrong and what is allowed.
    """
    task = _parse(text)
    _check_roles(task, config)
    if not _is_local(task.address):
        message = f"TF_CONFIG: {task.role} {task.index} is {task.address}, which is no address of this machine"
        raise ClusterConfigError(f"{message}; its addresses are {', '.join(sorted(_local_addresses()))}")
    return task


def _parse(text: str) -> Task:
    if len(text) > LONGEST_TEXT:
        raise ClusterConfigError(f"TF_CONFIG has {len(text)} characters: at most {LONGEST_TEXT} are read")
    try:
        content = json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ClusterConfigError(f"TF_CONFIG is not JSON: {_shorten(str(error))}") from error
    if not isinstance(content, Mapping):
        raise ClusterConfigError("TF_CONFIG must be an object with cluster and task")
    cluster = {role: _addresses(role, hosts) for role, hosts in _mapping(content, "cluster").items()}
    place = _mapping(content, "task")
    role, index = place.get("type"), place.get("index")
    if not isinstance(role, str) or role not in cluster:
        raise ClusterConfigError(
            f"TF_CONFIG: task.type={_shown(role)} must be one of the cluster's roles: {', '.join(cluster)}"
        )
    if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(cluster[role]):
        raise ClusterConfigError(
            f"TF_CONFIG: task.index={_shown(index)} must be 0 to {len(cluster[role]) - 1} for {role}"
        )
    everyone = [address.lower() for addresses in cluster.values() for address in addresses]
    if len(set(everyone)) < len(everyone):
        raise ClusterConfigError("TF_CONFIG: two roles have the same address: each needs its own host:port")
    return Task(cluster=cluster, role=role, index=index)


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key)
    if not isinstance(value, Mapping) or not value:
        raise ClusterConfigError(f"TF_CONFIG has no {key}: it must be an object with cluster and task")
    return value


def _addresses(role: str, hosts: Any) -> tuple[str, ...]:
    if role not in ROLES:
        raise ClusterConfigError(f"TF_CONFIG: role {_shown(role)} is not known: it must be one of {', '.join(ROLES)}")
    if not isinstance(hosts, list) or not hosts:
        raise ClusterConfigError(f"TF_CONFIG: cluster.{role} must be a list of host:port")
    for address in hosts:
        match = ADDRESS.fullmatch(address) if isinstance(address, str) and len(address) < LONGEST_ADDRESS else None
        if match is None or int(match["port"]) > 65535:
            raise ClusterConfigError(f"TF_CONFIG: cluster.{role} has {_shown(address)}: it must be host:port")
    return tuple(hosts)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"key {name!r} is given twice")
        content[name] = value
    return content


def _shown(value: object) -> str:
    return _shorten(repr(value))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


def _is_loopback(host: str) -> bool:
    # IPv4 alone: `rampline.jobs.loopback` makes servers listen there.
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:  # a name, such as 127.example.com
        return host == "localhost"


def _check_roles(task: Task, config: RunConfig) -> None:
    counts = {role: len(task.cluster.get(role, ())) for role in ROLES}
    if counts["chief"] > 1:
        raise ClusterConfigError(f"TF_CONFIG: cluster.chief has {counts['chief']} addresses: it must have 1")
    if config.strategy == "parameter_server":
        return _check_parameter_server_roles(counts, config)
    if counts["ps"]:
        raise ClusterConfigError(
            f"TF_CONFIG: cluster.ps is for strategy parameter_server, this run's is {config.strategy}"
        )
    found, cluster = task.workers, config.cluster
    least = cluster.workers if cluster.min_workers is None else cluster.min_workers
    if not least <= found <= cluster.workers:
        elastic = "" if cluster.min_workers is None else f" and cluster.min_workers={least}"
        wanted = f"cluster.workers={cluster.workers}{elastic}"
        raise ClusterConfigError(f"TF_CONFIG has {found} chief and workers, the run has {wanted}")


def _check_parameter_server_roles(counts: Mapping[str, int], config: RunConfig) -> None:
    if not counts["chief"]:
        raise ClusterConfigError("TF_CONFIG: cluster.chief is missing: strategy parameter_server needs one")
    wanted = {"worker": config.cluster.workers, "ps": config.cluster.parameter_servers}
    for role, number in wanted.items():
        if counts[role] != number:
            raise ClusterConfigError(f"TF_CONFIG: cluster.{role} has {counts[role]} addresses, the run wants {number}")


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that is empty or too long
        raise ClusterConfigError(f"TF_CONFIG: {address} cannot be resolved: {error}") from error
    return any(ip.startswith("127.") or ip in _local_addresses() for ip in map(str, found))


def _local_addresses() -> set[str]:
    interfaces = psutil.net_if_addrs().values()
    families = (socket.AF_INET, socket.AF_INET6)
    return {entry.address.partition("%")[0] for entries in interfaces for entry in entries if entry.family in families}
