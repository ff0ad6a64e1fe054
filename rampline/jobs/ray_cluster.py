"""The launcher of a Ray cluster: an actor per role, on nodes that answer; see docs/ray.md.

The cluster is the one that RAY_ADDRESS names, or that was started on this machine; without one, this machine is a
cluster of one node for as long as the command runs. An actor starts its role by the local launcher. Where a node does
not share the run directory, it gets a copy of it and of the dataset under the same paths, and what the role writes
comes back. This launcher chooses nodes by itself: in Ray 2.60, `node:IP` is a resource of each node.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rampline.config import RunConfig
from rampline.devices import available_cores
from rampline.errors import ClusterConfigError, RunFailed
from rampline.jobs.job import Job
from rampline.jobs.launcher import Node, wait_until
from rampline.jobs.local import LOCAL, LocalRole
from rampline.jobs.ray_roles import ACTOR_SECONDS, SILENT_SECONDS, RayNode, RayPlacement, answers
from rampline.jobs.role_host import RoleHost
from rampline.jobs.roles import LOOPBACK, role_counts
from rampline.jobs.tf_config import Task

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
# So long a machine that did not answer is left out; then, if it answers and there is no room elsewhere, it is tried.
AVOID_SECONDS = 30.0
# Before the kind of GPU, in the names of a node's resources.
KIND = "accelerator_type:"
# A cluster of this machine alone holds at least so many roles, as the local launcher does.
LEAST_CPUS = 4
# Where `ray start` leaves the address of its cluster.
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")


@dataclass(frozen=True)
class RayCluster:
    """Starts roles on a Ray cluster, see `rampline.jobs.launcher.Launcher`."""

    _open: list[RayPlacement] = field(default_factory=list)

    @cached_property
    def _ray(self) -> Any:
        return connect()

    @cached_property
    def _head(self) -> tuple[str, int]:
        address, _, port = self._ray.get_runtime_context().gcs_address.rpartition(":")
        return address, int(port)

    def alive(self, avoid: Collection[str] = ()) -> list[RayNode]:
        """Nodes that answer.

        Raises:
            RunFailed: when the head does not.
        """
        if not wait_until(lambda: answers(*self._head), SILENT_SECONDS / 2):
            raise RunFailed(
                f"the head of the Ray cluster, {self._head[0]}:{self._head[1]}, does not answer: start it, or another "
                f"one (RAY_ADDRESS), before you resume"
            )
        known = [node for node in _nodes(self._ray) if node.id not in avoid]
        with ThreadPoolExecutor(max_workers=64) as pool:
            answered = pool.map(lambda node: answers(node.address, node.port), known)
        return [node for node, is_there in zip(known, answered, strict=True) if is_there]

    def nodes(self) -> list[Node]:
        return [
            Node(
                name=node.name,
                state="alive",
                cores=int(node.cpus),
                free_cores=int(node.free_cpus),
                gpus=int(node.gpus),
                free_gpus=int(node.free_gpus),
                gpu_kind=node.gpu_kind,
                memory_bytes=node.memory_bytes,
            )
            for node in self.alive()
        ]

    def check(self, config: RunConfig) -> None:
        nodes = self.alive()
        whole = [dataclasses.replace(node, free_cpus=node.cpus, free_gpus=node.gpus) for node in nodes]
        least = config.cluster.min_workers or config.cluster.workers
        if _assign(config, least, whole) is None:
            has = f"{sum(n.cpus for n in nodes):g} CPUs and {sum(n.gpus for n in nodes):g} GPUs on {len(nodes)} nodes"
            needs = _needs(config, least, nodes)
            raise ClusterConfigError(f"the Ray cluster has {has}: the run's roles need {needs}")

    def room(self, config: RunConfig, *, avoid: Collection[str] = ()) -> int:
        own = Counter[tuple[str, str]]()
        for placement in self._open:
            if placement.config == config:
                for task in placement.tasks:
                    for kind, share in _share(task.role, config, placement.nodes.values()).items():
                        own[placement.nodes[task.name].id, kind] += share  # type: ignore[assignment]
        nodes = [
            dataclasses.replace(
                node, free_cpus=node.free_cpus + own[node.id, "CPU"], free_gpus=node.free_gpus + own[node.id, "GPU"]
            )
            for node in self.alive(avoid)
        ]
        counts = range(config.cluster.workers, 0, -1)
        return next((workers for workers in counts if _assign(config, workers, nodes)), 0)

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> RayPlacement:
        workers, began_at, left_out = workers or config.cluster.workers, time.monotonic(), set(avoid)
        while True:
            seconds = time.monotonic() - began_at
            nodes = self.alive(left_out if seconds < AVOID_SECONDS else ())
            chosen = _assign(config, workers, nodes)
            if chosen is not None:
                placement, silent = self._try(config, workers, chosen)
                if placement:
                    return placement
                left_out |= silent
            if seconds > config.cluster.rendezvous_timeout_seconds:
                raise RunFailed(f"the Ray cluster has no room for the run: {_missing(config, workers, nodes)}")
            time.sleep(POLL_SECONDS)

    def start(self, job: Job) -> LocalRole:
        return LOCAL.start(job)  # beside the command, on its files

    def _try(self, config: RunConfig, workers: int, chosen: Sequence[RayNode]) -> tuple[RayPlacement | None, set[str]]:
        """A placement on these nodes, one per role; else the nodes that do not answer."""
        ray, roles = self._ray, _roles(config, workers)
        bundles = [
            _share(role, config, chosen) | {f"node:{node.address}": 0.001}
            for (role, _), node in zip(roles, chosen, strict=True)
        ]
        group = ray.util.placement_group(bundles, strategy="PACK")
        # `ready()` would start a process for the question.
        if not group.wait(timeout_seconds=GROUP_SECONDS):
            ray.util.remove_placement_group(group)
            return None, set()
        names = [f"{role}-{index}" for role, index in roles]
        actors = self._make_actors(group, bundles)
        looks = self._ask(actors)
        silent = {node.id for node, look in zip(chosen, looks, strict=True) if look is None}
        ports, cores = zip(*(look or (0, 1) for look in looks), strict=True)
        placement = RayPlacement(
            config=config,
            group=group,
            tasks=_tasks(roles, chosen, ports),
            actors=dict(zip(names, actors, strict=True)),
            nodes=dict(zip(names, chosen, strict=True)),
            cores=dict(zip(names, cores, strict=True)),
            head=self._head,
            on_close=self._open.remove,
        )
        self._open.append(placement)
        if silent:
            placement.close()
        return None if silent else placement, silent

    def _make_actors(self, group: Any, bundles: Sequence[dict[str, float]]) -> list[Any]:
        ray = self._ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        sent = {name: value for name, value in os.environ.items() if name.startswith(SENT) and name != "TF_CONFIG"}
        actors = []
        for number, bundle in enumerate(bundles):
            options = {
                "num_cpus": bundle["CPU"],
                "num_gpus": bundle.get("GPU", 0),
                "max_concurrency": 4,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=number, placement_group_capture_child_tasks=False
                ),
            }
            actors.append(ray.remote(RoleHost).options(**options).remote(sent, os.getcwd()))
        return actors

    def _ask(self, actors: Sequence[Any]) -> list[tuple[int, int] | None]:
        """A free port and the cores of each; `None` where the actor does not answer."""
        ray, asked = self._ray, [actor.look.remote() for actor in actors]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ACTOR_SECONDS)
        looks: list[tuple[int, int] | None] = []
        for question in asked:
            try:
                looks.append(ray.get(question) if question in answered else None)
            except ray.exceptions.RayError:
                looks.append(None)
        return looks


RAY = RayCluster()


def _nodes(ray: Any) -> list[RayNode]:
    """Those that Ray believes to be alive."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [
        RayNode(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            port=node["NodeManagerPort"],
            name=node["NodeManagerHostname"],
            cpus=node["Resources"].get("CPU", 0.0),
            gpus=node["Resources"].get("GPU", 0.0),
            free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
            free_gpus=free.get(node["NodeID"], {}).get("GPU", 0.0),
            gpu_kind=", ".join(name.removeprefix(KIND) for name in node["Resources"] if name.startswith(KIND)),
            memory_bytes=int(node["Resources"].get("memory", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def _roles(config: RunConfig, workers: int) -> list[tuple[str, int]]:
    counts = role_counts(config)
    counts |= {"worker": workers} if "worker" in counts else {}
    return [(role, index) for role, count in counts.items() for index in range(count)]


def _tasks(roles: Sequence[tuple[str, int]], chosen: Sequence[RayNode], ports: Sequence[int]) -> list[Task]:
    is_one = len({node.id for node in chosen}) == 1
    cluster: dict[str, tuple[str, ...]] = {}
    for (role, _), node, port in zip(roles, chosen, ports, strict=True):
        cluster[role] = (*cluster.get(role, ()), f"{LOOPBACK if is_one else node.address}:{port}")
    return [Task(cluster=cluster, role=role, index=index) for role, index in roles]


def _share(role: str, config: RunConfig, nodes: Collection[RayNode]) -> dict[str, float]:
    """What a role reserves: one CPU, half of one where it computes no gradients, and the GPUs of its replicas."""
    if not config.is_synchronous and role != "worker":
        return {"CPU": 0.5}
    has_gpus = not config.cluster.virtual_devices and any(node.gpus for node in nodes)
    gpus = (config.cluster.replicas if config.is_synchronous else 1) if has_gpus else 0
    return {"CPU": 1.0, **({"GPU": float(gpus)} if gpus else {})}


def _needs(config: RunConfig, workers: int, nodes: Collection[RayNode]) -> str:
    shares = [_share(role, config, nodes) for role, _ in _roles(config, workers)]
    total = sum((Counter(share) for share in shares), Counter())
    return " and ".join(f"{count:g} {name}s" for name, count in total.items())


def _missing(config: RunConfig, workers: int, nodes: Sequence[RayNode]) -> str:
    free = f"{sum(n.free_cpus for n in nodes):g} CPUs and {sum(n.free_gpus for n in nodes):g} GPUs"
    where = ", ".join(sorted(node.name for node in nodes)) or "no node that answers"
    return f"its roles need {_needs(config, workers, nodes)}, free are {free} on {where}"


def _assign(config: RunConfig, workers: int, nodes: Sequence[RayNode]) -> list[RayNode] | None:
    """A node for each role, the emptiest first; `None` where they do not fit."""
    free = {node.id: [node.free_gpus, node.free_cpus] for node in nodes}
    by_id = {node.id: node for node in nodes}
    chosen = []
    for role, _ in _roles(config, workers):
        share = _share(role, config, nodes)
        needed = [share.get("GPU", 0.0), share["CPU"]]
        fitting = [node for node, has in free.items() if has[0] >= needed[0] and has[1] >= needed[1]]
        if not fitting:
            return None
        best = max(fitting, key=lambda node: free[node])
        free[best] = [has - one for has, one in zip(free[best], needed, strict=True)]
        chosen.append(by_id[best])
    return chosen


def connect() -> Any:
    """Ray, connected to the cluster that there is, or to one of this machine alone.

    Raises:
        ClusterConfigError: when Ray is not installed, or the cluster does not answer.
    """
    # Ray reads them once, when it is imported.
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if _is_local() else {}
    for name, value in {**SETTINGS, **secret}.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ClusterConfigError(
            "cluster.launcher=ray needs Ray: install rampline[ray], or `make setup EXTRA=ray`"
        ) from error
    if ray.is_initialized():
        return ray
    failures: list[BaseException] = []
    done = threading.Event()

    def hold() -> None:
        # Ray's own processes end with the thread that has started them, and its handler of SIGTERM is left out here.
        try:
            _init(ray)
        except BaseException as error:  # noqa: BLE001 - told in the thread that asked
            failures.append(error)
            done.set()
            return
        done.set()
        threading.Event().wait()

    threading.Thread(target=hold, name="ray", daemon=True).start()
    done.wait()
    if failures:
        address = os.environ.get("RAY_ADDRESS", "auto")
        first = str(failures[0]).strip().splitlines()[:1]
        raise ClusterConfigError(
            f"the Ray cluster RAY_ADDRESS={address} cannot be joined: {''.join(first)}"
        ) from failures[0]
    return ray


def _init(ray: Any) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if _is_local():
        ray.init(address="local", num_cpus=max(LEAST_CPUS, available_cores()), include_dashboard=False, **quiet)
    else:
        ray.init(address="auto", **quiet)


def _is_local() -> bool:
    """Whether no cluster is named, and this user has started none on this machine by `ray start`.

    Who joins another's cluster runs what its nodes answer.
    """
    address = os.environ.get("RAY_ADDRESS")
    if address:
        return address == "local"
    return not CURRENT_CLUSTER.exists() or CURRENT_CLUSTER.stat().st_uid != os.getuid()
