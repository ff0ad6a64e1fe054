"""The launcher of a Ray cluster: an actor per role, on nodes that answer; see docs/ray.md.

The cluster is the one that RAY_ADDRESS names, or that was started on this machine; without one, this machine is a
cluster of one node for as long as the command runs. An actor starts its role by the local launcher. Where a node does
not share the run directory, it gets a copy of it and of the dataset under the same paths, and what the role writes
comes back. Ray 2.60: `node:IP` is a resource of each node, and a node that went away in silence is believed in for a
minute or two, so this launcher chooses nodes by itself.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from rampline.config import RunConfig
from rampline.devices import available_cores
from rampline.errors import ClusterConfigError, RunFailed
from rampline.jobs.job import Job
from rampline.jobs.launcher import PlaceLost
from rampline.jobs.local import LOCAL, LocalRole
from rampline.jobs.mirror import apply, pack, pack_run
from rampline.jobs.role_host import RoleHost, Update
from rampline.jobs.roles import LOOPBACK, role_counts
from rampline.jobs.tf_config import Task
from rampline.record.run_directory import RunDirectory

# What TensorFlow, NCCL and Rampline read: a node's environment is not the command's.
SENT = ("RAMPLINE_", "TF_", "KERAS_", "NCCL_", "XLA_", "OMP_", "PYTHONPATH")
# No usage statistics; a busy machine needs longer than Ray's 30 s to start; roles alone hide GPUs.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "180",
    "RAY_gcs_server_port_wait_time_s": "180",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
SIGNAL_SECONDS = 1.0
# Of a Python process on the node, which imports Rampline.
ACTOR_SECONDS = 60.0
STAGE_SECONDS = 600.0
POLL_SECONDS = 0.5
TOKEN = ".shared"
# Where `ray start` leaves the address of its cluster.
CURRENT_CLUSTER = Path("/tmp/ray/ray_current_cluster")


@dataclass(frozen=True, kw_only=True)
class Node:
    """A machine of the cluster.

    Attributes:
        address: IPv4, which Ray names it by.
        name: host name.
        cpus, gpus: what Ray was told that it has.
        free_cpus, free_gpus: what nothing has reserved.
    """

    address: str
    name: str
    cpus: float
    gpus: float
    free_cpus: float
    free_gpus: float


class RayRole:
    """A role whose actor tells of it, see `rampline.jobs.launcher.Role`.

    Args:
        label: `worker 1`.
        task: its place among its peers.
        log: on this machine.
        actor: a `RoleHost`.
        node: address of its node.
        placement: what its actor tells counts as long as this is open.
        described: its entry in `roles.json`.
    """

    def __init__(
        self,
        *,
        label: str,
        task: Task,
        log: Path,
        folder: Path,
        actor: Any,
        node: str,
        placement: RayPlacement,
        described: dict,
    ) -> None:
        self.label, self.task, self.log, self.node = label, task, log, node
        self.is_clear = True
        self._folder, self._actor, self._placement, self._described = folder, actor, placement, described
        self._status: int | None = None
        self._failure: OSError | None = None
        self._last_line = ""
        self._told_at, self._silent = time.monotonic(), 0.0
        threading.Thread(target=self._follow, name=f"follow-{task.name}", daemon=True).start()

    @property
    def exit_status(self) -> int | None:
        if self._failure:
            raise self._failure
        return self._status

    def silent_seconds(self) -> float:
        # Before its first heartbeat another limit holds; a node that says nothing any more is another matter.
        return self._silent + max(0.0, time.monotonic() - self._told_at - 2.0)

    def signal(self, number: signal.Signals) -> None:
        if self._status is not None:
            return
        ray = _ray()
        try:
            ray.get(self._actor.signal.remote(int(number)), timeout=SIGNAL_SECONDS)
        except ray.exceptions.RayError:
            # Asking again would not help: its node is left out of the next placement.
            if number == signal.SIGKILL:
                self._lose("its node did not answer")

    def last_line(self) -> str:
        return self._last_line

    def describe(self) -> dict[str, object]:
        return self._described

    def _follow(self) -> None:
        ray = _ray()
        try:
            for reference in self._actor.updates.options(num_returns="streaming").remote():
                if not self._placement.take(self, ray.get(reference)):
                    return
        except OSError as error:
            if isinstance(error, ray.exceptions.RayError):
                self._lose(type(error).__name__)
            else:
                self._failure = error
        except ray.exceptions.RayError as error:
            self._lose(type(error).__name__)
        else:
            if self._status is None:
                self._lose("its actor ended")

    def learn(self, update: Update) -> None:
        """Take over what its actor tells."""
        for change in update.changes:
            apply(self._folder, change)
        self._told_at, self._silent = time.monotonic(), update.silent_seconds
        self._last_line, self._status = update.last_line, update.exit_status

    def _lose(self, why: str) -> None:
        if self._status is None:
            self.is_clear = False
            self._last_line, self._status = f"node {self.node}: {why}", -signal.SIGKILL


@dataclass(kw_only=True)
class RayPlacement:
    """Roles on nodes of the cluster, see `rampline.jobs.launcher.Placement`.

    Attributes:
        config: of the run.
        group: Ray's placement group.
        tasks: the roles, the one that leads first.
        actors: a `RoleHost` per role.
        nodes: address of its node per role.
    """

    config: RunConfig
    group: Any
    tasks: Sequence[Task]
    actors: Mapping[str, Any]
    nodes: Mapping[str, str]
    roles: list[RayRole] = field(default_factory=list)
    _is_open: bool = True
    _staged: set[str] = field(default_factory=set)
    _fence: threading.Lock = field(default_factory=threading.Lock)

    @property
    def warning(self) -> str | None:
        return self.tasks[0].network_warning

    def start(self, task: Task, job: Job) -> RayRole:
        ray, actor = _ray(), self.actors[task.name]
        launched = float(job.environment.get("RAMPLINE_LAUNCHED_AT", time.monotonic()))
        here = self.nodes[task.name]
        computing = sum(_computes(other, self.config) for other in self.tasks if self.nodes[other.name] == here)
        try:
            self._stage(actor, task, job.folder)
            described = ray.get(
                actor.start.remote(job, task, self.config, time.monotonic() - launched, computing),
                timeout=ACTOR_SECONDS,
            )
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"{task.name} cannot be started on node {here}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            raise PlaceLost(f"node {here} does not answer: {type(error).__name__}") from error
        role = RayRole(
            label=" ".join((task.role, str(task.index))),
            task=task,
            log=job.folder / "logs" / f"{task.name}.log",
            folder=job.folder,
            actor=actor,
            node=here,
            placement=self,
            described=described,
        )
        self.roles.append(role)
        return role

    def take(self, role: RayRole, update: Update) -> bool:
        """Let a role learn what its actor tells; `False` where the attempt is over: then nothing may be written."""
        with self._fence:
            if self._is_open:
                role.learn(update)
            return self._is_open and update.exit_status is None

    def close(self) -> frozenset[str]:
        with self._fence:
            self._is_open = False
        ray = _ray()
        for actor in self.actors.values():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(actor)
        with contextlib.suppress(ray.exceptions.RayError):
            ray.util.remove_placement_group(self.group)
        return frozenset(role.node for role in self.roles if not role.is_clear)

    def _stage(self, actor: Any, task: Task, folder: Path) -> None:
        """Where the node lacks the folder, put it there, and the dataset; the first role of a node does it for all."""
        ray, node = _ray(), self.nodes[task.name]
        token = folder / f"{TOKEN}-{secrets.token_hex(8)}"
        token.touch()
        try:
            dataset = RunDirectory(folder).read_identity().dataset
            lacking = ray.get(actor.lacks.remote([str(token), dataset]), timeout=ACTOR_SECONDS)
        finally:
            token.unlink()
        if dataset in lacking:
            ray.get(actor.stage.remote(dataset, self._packed(Path(dataset))), timeout=STAGE_SECONDS)
        if str(token) in lacking:
            if node not in self._staged:
                ray.get(actor.stage_run.remote(str(folder), ray.put(pack_run(folder))), timeout=STAGE_SECONDS)
                self._staged.add(node)
            ray.get(actor.tell_changes.remote(str(folder), task), timeout=ACTOR_SECONDS)

    def _packed(self, dataset: Path) -> Any:
        if self._dataset is None:
            self._dataset = _ray().put(pack(dataset))
        return self._dataset

    _dataset: Any = None


@dataclass(frozen=True)
class RayCluster:
    """Starts roles on a Ray cluster, see `rampline.jobs.launcher.Launcher`."""

    @cached_property
    def _ray(self) -> Any:
        return connect()

    def nodes(self, avoid: Collection[str] = ()) -> list[Node]:
        """Nodes that Ray believes to be alive."""
        ray = self._ray
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        return [
            Node(
                address=node["NodeManagerAddress"],
                name=node["NodeManagerHostname"],
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
                free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
                free_gpus=free.get(node["NodeID"], {}).get("GPU", 0.0),
            )
            for node in ray.nodes()
            if node["Alive"] and node["NodeManagerAddress"] not in avoid
        ]

    def check(self, config: RunConfig) -> None:
        nodes = self.nodes()
        whole = [_emptied(node) for node in nodes]
        if _assign(config, whole, _uses_gpus(config, nodes)) is None:
            has = (
                f"{sum(n.cpus for n in nodes):.0f} CPUs and {sum(n.gpus for n in nodes):.0f} GPUs on {len(nodes)} nodes"
            )
            raise ClusterConfigError(f"the Ray cluster has {has}: the run's roles need {_needs(config, nodes)}")

    def place(self, config: RunConfig, *, avoid: Collection[str] = ()) -> RayPlacement:
        left_out, deadline = set(avoid), time.monotonic() + config.cluster.rendezvous_timeout_seconds
        while True:
            nodes = self.nodes(left_out)
            chosen = _assign(config, nodes, _uses_gpus(config, nodes))
            if chosen is not None:
                placement, silent = self._try(config, chosen, nodes)
                if placement:
                    return placement
                left_out |= silent
            if time.monotonic() > deadline:
                without = f", {', '.join(sorted(left_out))} left out" if left_out else ""
                needs = _needs(config, self.nodes())
                raise RunFailed(f"the Ray cluster has no room for the run: its roles need {needs}{without}")
            time.sleep(POLL_SECONDS)

    def start(self, job: Job) -> LocalRole:
        return LOCAL.start(job)  # beside the command, on its files

    def _try(
        self, config: RunConfig, chosen: Sequence[Node], nodes: Sequence[Node]
    ) -> tuple[RayPlacement | None, set[str]]:
        """A placement on these nodes, one per role; else the nodes that do not answer."""
        ray = self._ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        roles = _roles(config)
        gpus = _uses_gpus(config, nodes)
        bundles = [
            _share(role, config, gpus) | {f"node:{node.address}": 0.001}
            for (role, _), node in zip(roles, chosen, strict=True)
        ]
        group = ray.util.placement_group(bundles, strategy="PACK")
        # `ready()` would start a process for the question.
        if not group.wait(timeout_seconds=10):
            ray.util.remove_placement_group(group)
            return None, set()
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
        asked = [actor.find_port.remote() for actor in actors]
        answered, _ = ray.wait(asked, num_returns=len(asked), timeout=ACTOR_SECONDS)
        silent = {node.address for node, question in zip(chosen, asked, strict=True) if question not in answered}
        ports: list[int] = []
        for node, question in zip(chosen, asked, strict=True):
            try:
                ports.append(ray.get(question, timeout=0.1) if node.address not in silent else 0)
            except ray.exceptions.RayError:
                silent.add(node.address)
        names = [f"{role}-{index}" for role, index in roles]
        placement = RayPlacement(
            config=config,
            group=group,
            tasks=_tasks(roles, chosen, ports) if not silent else (),
            actors=dict(zip(names, actors, strict=True)),
            nodes={name: node.address for name, node in zip(names, chosen, strict=True)},
        )
        if silent:
            placement.close()
            return None, silent
        return placement, set()


RAY = RayCluster()


def _roles(config: RunConfig) -> list[tuple[str, int]]:
    return [(role, index) for role, count in role_counts(config).items() for index in range(count)]


def _tasks(roles: Sequence[tuple[str, int]], chosen: Sequence[Node], ports: Sequence[int]) -> list[Task]:
    is_one = len({node.address for node in chosen}) == 1
    cluster: dict[str, tuple[str, ...]] = {}
    for (role, _), node, port in zip(roles, chosen, ports, strict=True):
        cluster[role] = (*cluster.get(role, ()), f"{LOOPBACK if is_one else node.address}:{port}")
    return [Task(cluster=cluster, role=role, index=index) for role, index in roles]


def _computes(task: Task, config: RunConfig) -> bool:
    return config.is_synchronous or task.role == "worker"


def _share(role: str, config: RunConfig, uses_gpus: bool) -> dict[str, float]:
    """What a role reserves: one CPU, half of one where it computes no gradients, and the GPUs of its replicas."""
    if not config.is_synchronous and role != "worker":
        return {"CPU": 0.5}
    gpus = (1 if not config.is_synchronous else config.cluster.replicas) if uses_gpus else 0
    return {"CPU": 1.0, **({"GPU": float(gpus)} if gpus else {})}


def _uses_gpus(config: RunConfig, nodes: Sequence[Node]) -> bool:
    return not config.cluster.virtual_devices and any(node.gpus for node in nodes)


def _needs(config: RunConfig, nodes: Sequence[Node]) -> str:
    shares = [_share(role, config, _uses_gpus(config, nodes)) for role, _ in _roles(config)]
    total = sum((Counter(share) for share in shares), Counter())
    return " and ".join(f"{count:g} {name}s" for name, count in total.items())


def _emptied(node: Node) -> Node:
    return Node(**{**vars(node), "free_cpus": node.cpus, "free_gpus": node.gpus})


def _assign(config: RunConfig, nodes: Sequence[Node], uses_gpus: bool) -> list[Node] | None:
    """A node for each role, the emptiest first; `None` where they do not fit."""
    free = {node.address: [node.free_cpus, node.free_gpus] for node in nodes}
    by_address = {node.address: node for node in nodes}
    chosen = []
    for role, _ in _roles(config):
        share = _share(role, config, uses_gpus)
        cpus, gpus = share["CPU"], share.get("GPU", 0.0)
        fitting = [address for address, (c, g) in free.items() if c >= cpus and g >= gpus]
        if not fitting:
            return None
        best = max(fitting, key=lambda address: (free[address][1], free[address][0]))
        free[best][0] -= cpus
        free[best][1] -= gpus
        chosen.append(by_address[best])
    return chosen


def _ray() -> Any:
    import ray

    return ray


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
        ray.init(address="local", num_cpus=available_cores(), include_dashboard=False, **quiet)
    else:
        ray.init(address="auto", **quiet)


def _is_local() -> bool:
    """Whether no cluster is named, and none was started on this machine by `ray start`."""
    address = os.environ.get("RAY_ADDRESS")
    return address == "local" if address else not CURRENT_CLUSTER.exists()
