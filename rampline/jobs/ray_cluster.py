"""The launcher of a Ray cluster: an actor on each node that answers starts the roles there; see docs/ray.md.

The cluster is the one that RAY_ADDRESS names, or that was started on this machine; without one, this machine is a
cluster of one node for as long as the command runs. An actor has imported TensorFlow, and starts roles by the local
launcher. It holds no CPU and no GPU, so it outlives the placement that has these, for the next one. Where a node does
not share the run directory, it gets a copy of it and of the dataset under the same paths, and what the roles write
comes back. This launcher chooses nodes by itself: in Ray 2.60, `node:IP` is a resource of each node.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import secrets
import shutil
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import psutil

from rampline.config import RunConfig
from rampline.devices import LOOPBACK, available_cores, find_devices
from rampline.errors import ClusterConfigError, RunFailed
from rampline.jobs.job import Job
from rampline.jobs.ray_roles import ACTOR_SECONDS, SILENT_SECONDS, RayHost, RayNode, RayPlacement, Share, answers
from rampline.jobs.role_host import RoleHost
from rampline.jobs.roles import role_counts
from rampline.jobs.tf_config import ALONE, Task, tasks_of
from rampline.jobs.waiting import wait_until
from rampline.record.home import Home

# What TensorFlow, NCCL and Rampline read: a node's environment is not the command's.
SENT = ("RAMPLINE_", "TF_", "KERAS_", "NCCL_", "XLA_", "OMP_", "PYTHONPATH")
# No usage statistics; a busy machine needs longer than Ray's 30 s to start; roles alone hide GPUs; without the last two
# a process does not end where the head is gone without a word.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_gcs_server_port_wait_time_s": "180",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_grpc_client_keepalive_time_ms": "5000",
    "RAY_grpc_client_keepalive_timeout_ms": "5000",
}
POLL_SECONDS = 0.5
GROUP_SECONDS = 10.0
# For a place for a job: as long as a run waits by default.
JOBS_SECONDS = 120.0
# So long a machine that did not answer is left out; then, if it answers and there is no room elsewhere, it is tried.
AVOID_SECONDS = 30.0
# So long one on which an actor could not start gives no room for more workers.
DISTRUST_SECONDS = 600.0
# A cluster of this machine alone holds at least so many roles, as the local launcher does.
LEAST_CPUS = 4
# In the place of an address, as Ray has it: a cluster of this machine alone, for the command.
THIS_MACHINE = "local"
# Where `ray start` leaves the address of its cluster.
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")

SharesOn = Callable[[int, Sequence[RayNode]], list[Share]]


@dataclass(frozen=True)
class RayCluster:
    """Starts roles on a Ray cluster, see `rampline.jobs.launcher.Launcher`.

    Attributes:
        _idle: actors that no placement has at the moment, by the id of their node.
        _silent: `time.monotonic()` when a node's new actor did not answer, by the id of the node.
    """

    _open: list[RayPlacement] = field(default_factory=list)
    _idle: dict[str, Any] = field(default_factory=dict)
    _silent: dict[str, float] = field(default_factory=dict)

    @cached_property
    def _ray(self) -> Any:
        return connect()

    @cached_property
    def _head(self) -> tuple[str, int]:
        address, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
        return address, int(port)

    @property
    def is_to_start(self) -> bool:
        """Whether there is no cluster yet, and this machine will be one."""
        return not _import().is_initialized() and _address() == THIS_MACHINE

    def nodes(self) -> list[RayNode]:
        """Nodes that answer; without a cluster, that of which this machine will make one. Starts nothing."""
        return [_this_machine()] if self.is_to_start else self._nodes()

    def _nodes(self, avoid: Collection[str] = ()) -> list[RayNode]:
        """Nodes that answer.

        Raises:
            RunFailed: when the head does not.
        """
        if not wait_until(lambda: answers(*self._head), SILENT_SECONDS / 2):
            raise RunFailed(
                f"the head of the Ray cluster, {self._head[0]}:{self._head[1]}, does not answer: start it, or another "
                f"one (RAY_ADDRESS), before you resume"
            )
        known = [node for node in _nodes_of(self._ray) if node.id not in avoid]
        with ThreadPoolExecutor(max_workers=64) as pool:
            answered = pool.map(lambda node: answers(node.address, node.port), known)
        return [node for node, is_there in zip(known, answered, strict=True) if is_there]

    def check(self, config: RunConfig) -> None:
        nodes = self.nodes()
        shares = _shares(config, config.cluster.min_workers or config.cluster.workers, nodes)
        if _assign(shares, [dataclasses.replace(node, free=node.has) for node in nodes]) is None:
            has = f"{_total(node.has for node in nodes)} on {len(nodes)} nodes"
            raise ClusterConfigError(f"the Ray cluster has {has}: the run's roles need {_total(shares)}")

    def prepare(self, config: RunConfig) -> None:
        """Let the nodes that a run may have import TensorFlow while the rest of the command starts."""
        nodes = self._nodes()
        for node in _assign(_shares(config, config.cluster.workers, nodes), nodes) or ():
            if node.id not in self._idle:
                self._idle[node.id] = self._make_actor(node)

    def room(self, config: RunConfig, *, avoid: Collection[str] = ()) -> int:
        own = [placement.bundles for placement in self._open if placement.config == config]
        since = time.monotonic() - DISTRUST_SECONDS
        nodes = [
            dataclasses.replace(node, free=_sum([node.free, *(bundles.get(node.id, {}) for bundles in own)]))
            for node in self._nodes({*avoid, *(node for node, at in self._silent.items() if at > since)})
        ]
        counts = range(config.cluster.workers, 0, -1)
        return next((workers for workers in counts if _assign(_shares(config, workers, nodes), nodes)), 0)

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> RayPlacement:
        cluster, most = config.cluster, workers or config.cluster.workers
        least = cluster.min_workers or most if workers else most
        counts, patience = range(most, least - 1, -1), cluster.rendezvous_timeout_seconds
        return self._place(config, counts, partial(_shares, config), avoid=avoid, patience=patience)

    def place_jobs(self, jobs: Sequence[Job]) -> RayPlacement:
        gpus = max((job.gpus.stop for job in jobs if job.gpus), default=0)
        return self._place(None, [1], lambda _, nodes: [_reserve(1.0, gpus, nodes)], avoid=(), patience=JOBS_SECONDS)

    def _place(
        self,
        config: RunConfig | None,
        counts: Sequence[int],
        shares_on: SharesOn,
        *,
        avoid: Collection[str],
        patience: float,
    ) -> RayPlacement:
        """With the first of these numbers of workers that there is room for, which may be another in each round."""
        began_at, left_out = time.monotonic(), set(avoid)
        while True:
            seconds = time.monotonic() - began_at
            nodes = self._nodes(left_out if seconds < AVOID_SECONDS else ())
            others = [node for node in nodes if node.id not in left_out]
            tries = [(workers, offered) for offered in (others, nodes) for workers in counts]
            fitting = ((workers, _assign(shares_on(workers, offered), offered)) for workers, offered in tries)
            if found := next(((workers, chosen) for workers, chosen in fitting if chosen), None):
                workers, chosen = found
                placement, silent = self._try(config, _roles(config, workers), shares_on(workers, chosen), chosen)
                if placement:
                    return placement
                left_out |= silent
                self._silent.update(dict.fromkeys(silent, time.monotonic()))
            if seconds > patience:
                missing = _missing(shares_on(counts[-1], nodes), nodes)
                raise RunFailed(f"the Ray cluster has no room for the run: {missing}")
            time.sleep(POLL_SECONDS)

    def _try(
        self,
        config: RunConfig | None,
        roles: Sequence[tuple[str, int]],
        shares: Sequence[Share],
        chosen: Sequence[RayNode],
    ) -> tuple[RayPlacement | None, set[str]]:
        """A placement on these nodes, one per role; else the nodes that do not answer."""
        ray, nodes = self._ray, {node.id: node for node in chosen}
        placed = list(zip(chosen, shares, strict=True))
        bundles = {node: _sum(share for other, share in placed if other.id == node) for node in nodes}
        on_nodes = [{**bundle, f"node:{nodes[node].address}": 0.001} for node, bundle in bundles.items()]
        group = ray.util.placement_group(on_nodes, strategy="PACK")
        with ExitStack() as stack:
            stack.callback(ray.util.remove_placement_group, group)
            # `ready()` would start a process for the question.
            if not group.wait(timeout_seconds=GROUP_SECONDS):
                return None, set()
            kept = {*self._idle}
            placement = self._occupy(config, roles, chosen, group, bundles)
            stack.pop_all()  # the placement gives it back
        self._open.append(placement)
        if not any(host.why_lost for host in placement.hosts.values()):
            return placement, set()
        # One that was kept may have ended meanwhile: a new one is tried.
        return None, {*placement.close()} - kept

    def _occupy(
        self,
        config: RunConfig | None,
        roles: Sequence[tuple[str, int]],
        chosen: Sequence[RayNode],
        group: Any,
        bundles: Mapping[str, Share],
    ) -> RayPlacement:
        """With an actor on each of the nodes of the group; some may be lost."""
        nodes = {node.id: node for node in chosen}
        hosts = {id: RayHost(node, self._idle.pop(id, None) or self._make_actor(node)) for id, node in nodes.items()}
        self._begin(hosts, Counter(node.id for node in chosen), self._gpus(group, bundles))
        taken = [hosts[node.id].ports.pop() if hosts[node.id].ports else 0 for node in chosen]
        tasks = _tasks(roles, chosen, taken) if config else [ALONE]
        return RayPlacement(
            config=config,
            tasks=tasks,
            group=group,
            bundles=bundles,
            hosts={task.name: hosts[node.id] for task, node in zip(tasks, chosen, strict=True)},
            head=self._head,
            idle=self._idle,
            on_close=self._open.remove,
        )

    def _make_actor(self, node: RayNode) -> Any:
        """Without CPU or GPU: a placement group reserves these."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = {"num_cpus": 0, "max_concurrency": 8, "scheduling_strategy": there}
        return self._ray.remote(RoleHost).options(**options).remote(_sent(), os.getcwd())

    def _gpus(self, group: Any, bundles: Mapping[str, Share]) -> dict[str, Any]:
        """Questions for the GPUs that the group has on each node: Ray tells them to what runs in the group alone."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        asked = {}
        for number, (node, bundle) in enumerate(bundles.items()):
            if gpus := bundle.get("GPU"):
                inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
                options = {"num_cpus": 0, "num_gpus": gpus, "scheduling_strategy": inside}
                asked[node] = self._ray.remote(_own_gpus).options(**options).remote()
        return asked

    def _begin(self, hosts: Mapping[str, RayHost], ports: Mapping[str, int], gpus: Mapping[str, Any]) -> None:
        """Ask each for free ports and its cores; one that does not answer is lost."""
        ray = self._ray
        asked = {
            host.actor.begin.remote(_sent(), ports[node], gpus.get(node, [])): host for node, host in hosts.items()
        }
        answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ACTOR_SECONDS)
        for question, host in asked.items():
            try:
                if question not in answered:
                    raise ray.exceptions.GetTimeoutError
                host.ports, host.cores = ray.get(question)
            except ray.exceptions.RayError:
                host.lose("does not answer")


RAY = RayCluster()


def _nodes_of(ray: Any) -> list[RayNode]:
    """Those that Ray believes to be alive."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [RayNode.from_ray(node, free.get(node["NodeID"], {})) for node in ray.nodes() if node["Alive"]]


def _this_machine() -> RayNode:
    """As `connect` would start it."""
    gpus, cores = find_devices().gpus, max(LEAST_CPUS, available_cores())
    has = {"CPU": float(cores), "GPU": float(len(gpus))}
    return RayNode(
        id="",
        address=LOOPBACK,
        port=0,
        has=has,
        free=has,
        name=socket.gethostname(),
        state="not started",
        cores=cores,
        gpus=len(gpus),
        gpu_kind=", ".join(dict.fromkeys(gpus)),
        memory_bytes=psutil.virtual_memory().total,
    )


def _sent() -> dict[str, str]:
    """What of this process's environment goes to the nodes; the home by its whole path."""
    sent = {name: value for name, value in os.environ.items() if name.startswith(SENT) and name != "TF_CONFIG"}
    return sent | {"RAMPLINE_HOME": str(Home.from_environment().root)}


def _own_gpus() -> list[str]:
    import ray

    return [str(gpu) for gpu in ray.get_gpu_ids()]


def _roles(config: RunConfig | None, workers: int) -> list[tuple[str, int]]:
    counts = role_counts(config, workers) if config else {ALONE.role: 1}
    return [(role, index) for role, count in counts.items() for index in range(count)]


def _tasks(roles: Sequence[tuple[str, int]], chosen: Sequence[RayNode], ports: Sequence[int]) -> list[Task]:
    is_one = len({node.id for node in chosen}) == 1
    cluster: dict[str, tuple[str, ...]] = {}
    for (role, _), node, port in zip(roles, chosen, ports, strict=True):
        cluster[role] = (*cluster.get(role, ()), f"{LOOPBACK if is_one else node.address}:{port}")
    return tasks_of(cluster)


def _shares(config: RunConfig, workers: int, nodes: Collection[RayNode]) -> list[Share]:
    """What each role reserves: one CPU and the GPUs of its replicas, half a CPU where it computes no gradients."""
    devices = config.cluster.replicas if config.is_synchronous else 1
    gpus = 0 if config.cluster.virtual_devices else devices
    computing, other = _reserve(1.0, gpus, nodes), _reserve(0.5, 0, nodes)
    roles = _roles(config, workers)
    return [computing if config.is_synchronous or role == "worker" else other for role, _ in roles]


def _reserve(cpus: float, gpus: int, nodes: Collection[RayNode]) -> Share:
    """GPUs only where the cluster has any."""
    return {"CPU": cpus, **({"GPU": float(gpus)} if gpus and any(node.has["GPU"] for node in nodes) else {})}


def _sum(shares: Iterable[Share]) -> Share:
    total: dict[str, float] = {}
    for share in shares:
        total |= {kind: total.get(kind, 0.0) + count for kind, count in share.items()}
    return total


def _total(shares: Iterable[Share]) -> str:
    return " and ".join(f"{count:g} {kind}s" for kind, count in _sum(shares).items())


def _missing(shares: Sequence[Share], nodes: Sequence[RayNode]) -> str:
    where = ", ".join(sorted(node.name for node in nodes)) or "no node that answers"
    return f"it needs {_total(shares)}, free are {_total(node.free for node in nodes) or 'none'} on {where}"


def _assign(shares: Sequence[Share], nodes: Sequence[RayNode]) -> list[RayNode] | None:
    """A node for each share, the emptiest first; `None` where they do not fit."""
    free, chosen = {node.id: dict(node.free) for node in nodes}, []
    for share in shares:
        fitting = [node for node in nodes if all(free[node.id][kind] >= share[kind] for kind in share)]
        if not fitting:
            return None
        best = max(fitting, key=lambda node: (free[node.id]["GPU"], free[node.id]["CPU"]))
        free[best.id] |= {kind: free[best.id][kind] - share[kind] for kind in share}
        chosen.append(best)
    return chosen


def _import() -> Any:
    """Ray, with the settings that it reads once, when it is imported.

    Raises:
        ClusterConfigError: when it is not installed.
    """
    address = _address()
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if address == THIS_MACHINE else {}
    for name, value in {**SETTINGS, **secret}.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ClusterConfigError(
            "cluster.launcher=ray needs Ray: install rampline[ray], or `make setup EXTRA=ray`"
        ) from error
    return ray


def connect() -> Any:
    """Ray, connected to the cluster that there is, or to one of this machine alone.

    Raises:
        ClusterConfigError: when Ray is not installed, or the cluster does not answer.
    """
    ray, address = _import(), _address()
    if ray.is_initialized():
        return ray
    host, _, port = address.rpartition(":")
    # Ray itself would ask for more than ten minutes. An address like ray://… is for Ray to understand.
    is_plain = port.isdecimal() and "/" not in address
    if is_plain and not wait_until(lambda: answers(host.strip("[]"), int(port)), SILENT_SECONDS / 2):
        raise ClusterConfigError(
            f"no Ray cluster answers at RAY_ADDRESS={address}: start it, or name another one, `local` for this machine "
            f"alone"
        )
    failures: list[BaseException] = []
    done = threading.Event()

    def hold() -> None:
        # Ray's own processes end with the thread that has started them, and its handler of SIGTERM is left out here.
        try:
            _init(ray, address)
        except BaseException as error:  # noqa: BLE001 - told in the thread that asked
            failures.append(error)
            done.set()
            return
        done.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="ray", daemon=True).start()
    done.wait()
    if failures:
        first = "".join(str(failures[0]).strip().splitlines()[:1])
        raise ClusterConfigError(f"the Ray cluster RAY_ADDRESS={address} cannot be joined: {first}") from failures[0]
    return ray


def _init(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == THIS_MACHINE:
        cpus = max(LEAST_CPUS, available_cores())
        ray.init(address=THIS_MACHINE, num_cpus=cpus, include_dashboard=False, _temp_dir=_private_folder(ray), **quiet)
        return
    if address == _started_here():
        from ray._private.authentication import authentication_token_setup as token

        # As `ray start` has done, and Ray does for `auto`: the user's token counts without RAY_AUTH_MODE.
        token.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    ray.init(address=address, **quiet)


def _private_folder(ray: Any) -> str:
    """For Ray's sockets and logs until this process ends.

    Ray opens its own folders to all users, who could take a socket's place: the one around them is closed.
    """
    # Names of sockets have 107 characters, of which a folder for temporary files may leave too few.
    base = os.environ.get("RAY_TMPDIR") or "/tmp"
    os.makedirs(base, exist_ok=True)  # as Ray does
    around = tempfile.mkdtemp(prefix="ray-", dir=base)
    atexit.register(shutil.rmtree, around, ignore_errors=True)
    atexit.register(ray.shutdown, wait_for_processes=True)  # before that: the last one is called first
    return f"{around}/ray"


def _address() -> str:
    """Of the cluster that is named, else of the one that this user has started on this machine by `ray start`.

    Who joins another's cluster runs what its nodes answer, and Ray's own `auto` takes any user's.

    Raises:
        ClusterConfigError: when this user's has gone.
    """
    if (named := os.environ.get("RAY_ADDRESS", "auto")) not in ("", "auto"):
        return named
    address = _started_here()
    if address and not _has_node(address):  # another user's cluster may have its port by now
        raise ClusterConfigError(
            f"no node of the Ray cluster {address}, which {CURRENT_CLUSTER} names, runs here as you: start one, or set "
            f"RAY_ADDRESS, to `local` for this machine alone"
        )
    return address or THIS_MACHINE


def _has_node(address: str) -> bool:
    """Whether a process of this user's is a node of that cluster."""
    return any(
        (uids := process.info["uids"])  # hidden of other users' processes on some machines
        and uids.real == os.getuid()
        and f"--gcs-address={address}" in (process.info["cmdline"] or ())
        for process in psutil.process_iter(["uids", "cmdline"])
    )


def _started_here() -> str:
    """The address that `ray start` has left, empty if this user has not: everybody may write to the folder."""
    try:
        # A link may lead to another file of this user's, and a pipe would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(CURRENT_CLUSTER, opener=lambda path, _: os.open(path, flags)) as file:
            return file.read().strip() if os.fstat(file.fileno()).st_uid == os.getuid() else ""
    except OSError:
        return ""
