"""Roles of one attempt on nodes of a Ray cluster: an actor per node, `RoleHost`, starts them and tells of them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rampline.config import RunConfig
from rampline.config.keras_names import FRESH_WEIGHTS
from rampline.errors import RunFailed
from rampline.files import read_json, write_json
from rampline.jobs.exit_status import MACHINE_LOST
from rampline.jobs.heartbeat import RunningClock
from rampline.jobs.job import Job
from rampline.jobs.launcher import KILL_SECONDS, Node, PlaceLost
from rampline.jobs.mirror import NOT_COPIED, Change, apply, pack
from rampline.jobs.role_host import Update
from rampline.jobs.tf_config import Task
from rampline.jobs.waiting import wait_until
from rampline.record.checkpoints import find_checkpoints
from rampline.record.run_directory import RunDirectory

SIGNAL_SECONDS = 1.0
# Of a Python process on the node, which imports Rampline.
ACTOR_SECONDS = 60.0
# A large dataset goes to a node in one call.
CALL_SECONDS = 600.0
# What is left of roles is killed.
END_SECONDS = 5.0
# Others may take the places at once: then they are not seen to be free.
RETURN_SECONDS = 5.0
# Actors and the head are asked every second.
SILENT_SECONDS, ASK_SECONDS = 10.0, 1.0
CONNECT_SECONDS = 1.0
# Before the kind of GPU, in the names of a node's resources.
KIND = "accelerator_type:"
TOKEN, THREADS = ".shared", "threads.json"
# Functions whose roles have the threads of a run.
TIMED = ("role", "forecast")
# Functions whose roles begin with the weights of a run.
BEGINNING = ("role", "parity")

Share = Mapping[str, float]
"""What is reserved: numbers of `CPU` and `GPU`."""


@dataclass(frozen=True, kw_only=True)
class RayNode(Node):
    """A machine of the cluster.

    Attributes:
        id: Ray's; another one after `ray start` was called again.
        address: IPv4, which Ray names it by.
        port: of its daemon, the raylet.
        has: what Ray was told that it has.
    """

    id: str
    address: str
    port: int
    has: Share
    free: Share

    @classmethod
    def from_ray(cls, node: Mapping[str, Any], resources_free: Mapping[str, float]) -> RayNode:
        """One that `ray.nodes()` tells of."""
        resources = node["Resources"]
        has, free = ({kind: each.get(kind, 0.0) for kind in ("CPU", "GPU")} for each in (resources, resources_free))
        return cls(
            id=node["NodeID"],
            address=node["NodeManagerAddress"],
            port=node["NodeManagerPort"],
            has=has,
            free=free,
            name=node["NodeManagerHostname"],
            state="alive",
            cores=int(has["CPU"]),
            free_cores=int(free["CPU"]),
            gpus=int(has["GPU"]),
            free_gpus=int(free["GPU"]),
            gpu_kind=", ".join(name.removeprefix(KIND) for name in resources if name.startswith(KIND)),
            memory_bytes=int(resources.get("memory", 0)),
        )


def answers(address: str, port: int) -> bool:
    """Whether a server can be reached: Ray believes in a machine that fell silent for a minute or two."""
    try:
        socket.create_connection((address, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@dataclass(eq=False)
class RayHost:
    """A node's actor, as long as a placement has it.

    Attributes:
        actor: a `RoleHost`.
        ports: free ones of that node.
        copies: what the node does not share, and has copies of; `None` before anything was staged.
        silent_seconds: of each role since its last heartbeat, as the actor has told.
        ended: exit status and telling line of the roles that have ended.
        failure: of a disk of this machine.
        is_over: whether the placement is.
        heard_at: by `clock`.
    """

    node: RayNode
    actor: Any
    ports: list[int] = field(default_factory=list)
    cores: int = 1
    copies: list[Path] | None = None
    silent_seconds: Mapping[str, float] = field(default_factory=dict)
    ended: dict[str, tuple[int, str]] = field(default_factory=dict)
    why_lost: str | None = None
    failure: OSError | None = None
    is_over: bool = False
    clock: RunningClock = field(default_factory=RunningClock)
    heard_at: float = 0.0
    follower: threading.Thread | None = None

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """What a method of the actor returns; waits as long as the node can be reached.

        Raises:
            PlaceLost: when it cannot, or the call takes too long.
            RunFailed: when the method has failed.
        """
        ray, asked = _ray(), getattr(self.actor, method).remote(*arguments, **named)
        began_at = reached_at = time.monotonic()
        try:
            while not ray.wait([asked], timeout=ASK_SECONDS)[0]:
                now = time.monotonic()
                reached_at = now if answers(self.node.address, self.node.port) else reached_at
                if now - reached_at > SILENT_SECONDS or now - began_at > CALL_SECONDS:
                    raise TimeoutError
            return ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"node {self.node.address} cannot start a role: {error.cause}") from error
        except (ray.exceptions.RayError, TimeoutError) as error:
            self.lose("does not answer")
            raise PlaceLost(f"node {self.node.address} does not answer: {type(error).__name__}") from error

    def follow(self, take: Callable[[RayHost, Update], bool]) -> None:
        """Give what the actor tells to `take`, from now on; that says whether there is more to come."""
        if self.follower is None:
            self.heard_at = self.clock()
            self.follower = threading.Thread(target=self._follow, args=(take,), name="ray-follow", daemon=True)
            self.follower.start()

    def hear(self, silent_seconds: Mapping[str, float]) -> None:
        """The actor lives, and has not seen the roles' heartbeats for so long."""
        self.heard_at, self.silent_seconds = self.clock(), silent_seconds

    def lose(self, why: str) -> None:
        """Nothing more will be heard of it."""
        self.why_lost = self.why_lost or f"node {self.node.address} {why}"

    @property
    def is_silent(self) -> bool:
        """Whether the actor has not been heard for so long that its machine counts as lost."""
        return self.follower is not None and self.clock() - self.heard_at > SILENT_SECONDS

    def _follow(self, take: Callable[[RayHost, Update], bool]) -> None:
        ray = _ray()
        try:
            for reference in self.actor.updates.options(num_returns="streaming").remote():
                if not take(self, ray.get(reference)):
                    return
        except Exception as error:  # noqa: BLE001 - whatever it is, this thread hears no more of the node
            if isinstance(error, OSError) and not isinstance(error, ray.exceptions.RayError):
                self.failure = error
            elif not self.is_over:
                self.lose(f"is lost ({type(error).__name__})")


@dataclass(kw_only=True)
class RayRole:
    """A process that the actor of a node has started, see `rampline.jobs.launcher.Role`.

    Attributes:
        name: of this start of it.
        host: where it is.
        described: its entry in `roles.json`.
    """

    label: str
    task: Task
    log: Path
    name: str
    host: RayHost
    described: dict[str, object] = field(default_factory=dict)

    @property
    def exit_status(self) -> int | None:
        if self.host.failure:
            raise self.host.failure
        if self.name in self.host.ended:
            return self.host.ended[self.name][0]
        return MACHINE_LOST if self.host.why_lost else None

    def silent_seconds(self) -> float:
        # Its actor is heard at least every second.
        unheard = max(0.0, self.host.clock() - self.host.heard_at - 2 * ASK_SECONDS)
        return self.host.silent_seconds.get(self.name, 0.0) + unheard

    def signal(self, number: signal.Signals) -> None:
        if self.name in self.host.ended:
            return
        ray, asked = _ray(), self.host.actor.signal.remote(self.name, int(number))
        if self.host.why_lost:
            return  # it may arrive all the same
        try:
            ray.get(asked, timeout=SIGNAL_SECONDS)
        except ray.exceptions.RayError:
            if number == signal.SIGKILL:
                self.host.lose("does not answer")

    def last_line(self) -> str:
        return self.host.ended[self.name][1] if self.name in self.host.ended else self.host.why_lost or ""

    def describe(self) -> dict[str, object]:
        return self.described


@dataclass(kw_only=True)
class RayPlacement:
    """Processes on nodes of the cluster, see `rampline.jobs.launcher.Placement`.

    Attributes:
        config: `None` for jobs without peers.
        group: Ray's placement group.
        bundles: what it reserves, by the id of each node.
        hosts: by the name of each role.
        head: address and port of the cluster's head.
        idle: gets the actors that the next placement may have, by the id of their node.
    """

    config: RunConfig | None
    tasks: Sequence[Task]
    group: Any
    bundles: Mapping[str, Share]
    hosts: Mapping[str, RayHost]
    head: tuple[str, int]
    idle: dict[str, Any]
    on_close: Callable[[RayPlacement], None]
    starts: int = 0
    _staged: dict[Path, Any] = field(default_factory=dict)
    _watcher: threading.Thread | None = None
    # What an actor tells counts as long as the placement is open.
    _is_closed: threading.Event = field(default_factory=threading.Event)
    _taking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def warning(self) -> str | None:
        return "; ".join(filter(None, [token_warning(), self.tasks[0].network_warning])) or None

    @property
    def machine(self) -> dict[str, str] | None:
        """Nodes of one kind count as one machine, or nothing could be compared with what is trained on more of them."""
        if {node["NodeManagerHostname"] for node in _ray().nodes()} == {socket.gethostname()}:
            return None
        gpus = {", ".join([host.node.gpu_kind or "GPU"] * host.node.gpus) or "none" for host in self._all}
        cores = sorted({host.cores for host in self._all})
        name = f"Ray cluster {self.head[0]}"
        return {"host": name, "cpu cores": " or ".join(map(str, cores)), "gpus": " or ".join(sorted(gpus))}

    def start(self, task: Task, job: Job) -> RayRole:
        host, name = self.hosts[task.name], f"{task.name}.{self.starts}"
        self.starts += 1
        launched_at = float(job.environment.get("RAMPLINE_LAUNCHED_AT", time.monotonic()))
        log, label = job.log_of(task), job.label_of(task, host.node.name)
        role = RayRole(label=label, task=task, log=log, name=name, host=host)
        job = dataclasses.replace(job, environment={**self._threads(task, job), **job.environment})
        if host.copies is None:
            self._stage(host, job, log)
        beside = [other for other in self.tasks if self.hosts[other.name] is host]
        age_seconds = time.monotonic() - launched_at
        role.described = host.call("start", name, job, task, beside, self.config, age_seconds)
        host.follow(self._take)
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, args=(job.folder,), name="ray-watch", daemon=True)
            self._watcher.start()
        return role

    def close(self) -> frozenset[str]:
        with self._taking:
            self._is_closed.set()
            for host in self._all:
                host.is_over = True
        freeing = threading.Thread(target=self._free, daemon=True)
        freeing.start()
        # Without a head their calls do not come back. With one they do, and Ray ends a process with a thread that calls
        # it after its end.
        deadline = time.monotonic() + KILL_SECONDS
        for thread in filter(None, (freeing, self._watcher, *(host.follower for host in self._all))):
            thread.join(max(0.0, deadline - time.monotonic()))
        self.on_close(self)
        return frozenset(host.node.id for host in self._all if host.why_lost)

    @property
    def _all(self) -> list[RayHost]:
        return list({host.node.id: host for host in self.hosts.values()}.values())

    def _threads(self, task: Task, job: Job) -> dict[str, str]:
        """As many as in the run's first placement: with another number sums have other bits."""
        config = self.config
        if config is None or job.function not in TIMED or "TF_NUM_INTRAOP_THREADS" in os.environ:
            return {}
        computing = [t for t in self.tasks if config.is_synchronous or t.role == "worker"]
        if task not in computing:
            return {}
        file = job.folder / THREADS
        if not file.is_file():
            beside = Counter(self.hosts[t.name] for t in computing)
            devices = config.cluster.replicas if config.cluster.virtual_devices else 1
            shares = [host.cores // (count * devices) for host, count in beside.items()]
            write_json(file, {"intraop_threads": max(1, min(shares))})
        return {"TF_NUM_INTRAOP_THREADS": str(read_json(file)["intraop_threads"])}

    def _take(self, host: RayHost, update: Update) -> bool:
        with self._taking:
            if not self._is_closed.is_set():
                for change in update.changes:
                    apply(host.copies or [], change)
                host.hear(update.silent_seconds)
                host.ended.update(update.ended)
            return not self._is_closed.is_set()

    def _watch(self, folder: Path) -> None:
        """Ask the actors and the head as long as the placement is open, and tell the copies of a stop."""
        ray, asked, head_heard_at, told = _ray(), dict[Any, RayHost](), time.monotonic(), b""
        while not self._is_closed.wait(ASK_SECONDS / 2):
            hosts = [host for host in self._all if host.follower and not host.why_lost]
            asked |= {host.actor.silent_seconds.remote(): host for host in hosts if host not in asked.values()}
            answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_SECONDS) if asked else ([], [])
            for question in answered:
                host = asked.pop(question)
                with contextlib.suppress(ray.exceptions.RayError):  # what follows the actor says so
                    host.hear(ray.get(question))
            for host in hosts:
                if host.is_silent:
                    host.lose("does not answer")
            if answers(*self.head):
                head_heard_at = time.monotonic()
            elif time.monotonic() - head_heard_at > SILENT_SECONDS:
                for host in hosts:
                    host.lose("is out of reach, as is the head of the cluster")
            told = self._tell_stop(folder, told)

    def _tell_stop(self, folder: Path, told: bytes) -> bytes:
        """Tell the copies of a run directory what `stop.json` says here."""
        file = RunDirectory(folder).stop_file
        content = file.read_bytes() if file.is_file() else told
        if content != told:
            for host in self._all:
                if host.copies and folder in host.copies:
                    host.actor.change.remote(folder, Change("replace", str(file), content))
        return content

    def _free(self) -> None:
        """Give all back; an actor stays, without CPU or GPU, if none of its roles is left."""
        ray = _ray()
        with contextlib.suppress(ray.exceptions.RayError):
            for host in self._all:
                if not self._is_clear(host) or self.idle.setdefault(host.node.id, host.actor) is not host.actor:
                    ray.kill(host.actor)
            ray.util.remove_placement_group(self.group)
            # Until Ray counts the places as free there seems to be less room than there is.
            nodes = [host.node for host in self._all if not host.why_lost]
            wait_until(lambda: _are_free(nodes), RETURN_SECONDS)

    def _is_clear(self, host: RayHost) -> bool:
        ray = _ray()
        if host.why_lost or host.failure:
            return False
        try:
            ray.get(host.actor.end.remote(), timeout=END_SECONDS)
        except ray.exceptions.RayError:
            host.lose("does not end its roles")
        return not host.why_lost

    def _stage(self, host: RayHost, job: Job, log: Path) -> None:
        """Where the node lacks what the job needs, put it there: once for all processes of the placement."""
        ray, folders = _ray(), job.folders or (job.folder,)
        tokens = {folder / f"{TOKEN}-{secrets.token_hex(8)}": folder for folder in folders}
        try:
            for token in tokens:
                token.touch()
            lacking = set(host.call("lacks", [*map(str, tokens), *map(str, job.datasets)]))
        finally:
            for token in tokens:
                token.unlink(missing_ok=True)
        for dataset in job.datasets:
            if str(dataset) in lacking:
                self._staged[dataset] = self._staged.get(dataset) or ray.put(pack(dataset))
                host.call("stage", str(dataset), self._staged[dataset])
        host.copies = [folder for token, folder in tokens.items() if str(token) in lacking]
        for folder in host.copies:
            # A role goes on from a checkpoint with all weights in it; the parity check begins anew.
            goes_on = job.function == "role" and find_checkpoints(RunDirectory(folder).checkpoints)
            beside = _weights_of(RunDirectory(folder)) if job.function in BEGINNING and not goes_on else {}
            host.call("stage_run", str(folder), ray.put(pack(folder, without=NOT_COPIED, beside=beside)))
        if host.copies:
            host.copies.append(log)
            is_chiefs = any(task.is_chief for task in self.tasks if self.hosts[task.name] is host)
            host.call("tell_changes", host.copies, is_chiefs=is_chiefs)


def _weights_of(directory: RunDirectory) -> dict[str, Path]:
    """Where a copy of a run directory has the file, or the checkpoint, that the run begins with, and where it is."""
    weights = Path(directory.read_config().model.weights if directory.config_file.is_file() else "none")
    is_own = str(weights) not in FRESH_WEIGHTS and weights.exists()
    return {f"{directory.weights.name}/{weights.name}": weights} if is_own else {}


def token_warning() -> str | None:
    """One line for the user of a cluster without a token: one that has it would have refused this process."""
    from ray._private.authentication.authentication_utils import is_token_auth_enabled

    if is_token_auth_enabled():
        return None
    return (
        "the Ray cluster has no token (RAY_AUTH_MODE): all who reach its ports can run code on its nodes (docs/ray.md)"
    )


def _are_free(nodes: Iterable[RayNode]) -> bool:
    """Whether these have again what was free when they were chosen, or are gone."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return all(free[node.id].get("CPU", 0.0) >= node.free["CPU"] for node in nodes if node.id in free)


def _ray() -> Any:
    import ray

    return ray
