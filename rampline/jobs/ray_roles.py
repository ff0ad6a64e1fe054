"""Roles of one attempt on nodes of a Ray cluster: each has an actor, `RoleHost`, that starts it and tells of it."""

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
from rampline.errors import RunFailed
from rampline.files import read_json, write_json
from rampline.jobs.exit_status import MACHINE_LOST
from rampline.jobs.job import Job
from rampline.jobs.launcher import KILL_SECONDS, PlaceLost, wait_until
from rampline.jobs.mirror import Change, apply, pack, pack_run
from rampline.jobs.role_host import Update
from rampline.jobs.tf_config import Task
from rampline.record.run_directory import RunDirectory

SIGNAL_SECONDS = 1.0
# Of a Python process on the node, which imports Rampline.
ACTOR_SECONDS = 60.0
STAGE_SECONDS = 600.0
# Others may take the places at once: then they are not seen to be free.
RETURN_SECONDS = 5.0
# Actors and the head are asked every second.
SILENT_SECONDS, ASK_SECONDS = 10.0, 1.0
CONNECT_SECONDS = 1.0
TOKEN, THREADS = ".shared", "threads.json"


@dataclass(frozen=True, kw_only=True)
class RayNode:
    """A machine of the cluster.

    Attributes:
        id: Ray's; another one after `ray start` was called again.
        address: IPv4, which Ray names it by.
        port: of its daemon, the raylet.
        name: host name.
        cpus, gpus: what Ray was told that it has.
        free_cpus, free_gpus: what nothing has reserved.
        gpu_kind: such as `H100`; empty where Ray does not know.
        memory_bytes: that Ray gives out.
    """

    id: str
    address: str
    port: int
    name: str
    cpus: float
    gpus: float
    free_cpus: float
    free_gpus: float
    gpu_kind: str
    memory_bytes: int


def answers(address: str, port: int) -> bool:
    """Whether a server can be reached: Ray believes in a machine that fell silent for a minute or two."""
    try:
        socket.create_connection((address, port), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


class RayRole:
    """A role whose actor tells of it, see `rampline.jobs.launcher.Role`.

    Args:
        task: its place among its peers.
        folder: of the run, on this machine.
        actor: a `RoleHost`.
        node: where it is.
        take: gets what its actor tells; says whether there is more to come.
        described: its entry in `roles.json`.
    """

    def __init__(
        self,
        *,
        task: Task,
        folder: Path,
        actor: Any,
        node: RayNode,
        take: Callable[[RayRole, Update], bool],
        described: dict,
    ) -> None:
        self.label = f"{task.role} {task.index} on {node.name}"
        self.task, self.log, self.node = task, folder / "logs" / f"{task.name}.log", node
        self.is_lost = False
        self._actor, self._take, self._described = actor, take, described
        self._status: int | None = None
        self._failure: OSError | None = None
        self._last_line = ""
        self._heard_at, self._silent = time.monotonic(), 0.0
        self.follower = threading.Thread(target=self._follow, name=f"follow-{task.name}", daemon=True)
        self.follower.start()

    @property
    def exit_status(self) -> int | None:
        if self._failure:
            raise self._failure
        return self._status

    def silent_seconds(self) -> float:
        # Its actor is heard at least every second.
        return self._silent + max(0.0, time.monotonic() - self._heard_at - 2 * ASK_SECONDS)

    def signal(self, number: signal.Signals) -> None:
        if self._status is not None and not self.is_lost:
            return
        ray, asked = _ray(), self._actor.signal.remote(int(number))
        if self.is_lost:
            return  # it may arrive all the same
        try:
            ray.get(asked, timeout=SIGNAL_SECONDS)
        except ray.exceptions.RayError:
            if number == signal.SIGKILL:
                self.lose("does not answer")

    def last_line(self) -> str:
        return self._last_line

    def describe(self) -> dict[str, object]:
        return self._described

    def ask(self) -> Any:
        """Ask its actor; the answer is for `hear`."""
        return self._actor.silent_seconds.remote()

    def hear(self, silent_seconds: float) -> None:
        """Its actor lives, and has not seen the role's heartbeat for so long."""
        self._heard_at, self._silent = time.monotonic(), silent_seconds

    def learn(self, update: Update) -> None:
        """Take over what its actor tells."""
        self.hear(update.silent_seconds)
        self._last_line, self._status = update.last_line, update.exit_status

    def lose(self, why: str) -> None:
        """Nothing more will be heard of it."""
        if self._status is None:
            self.is_lost = True
            self._last_line, self._status = f"node {self.node.address} {why}", MACHINE_LOST

    @property
    def is_silent(self) -> bool:
        """Whether its actor has not been heard for so long that its machine counts as lost."""
        return self._status is None and time.monotonic() - self._heard_at > SILENT_SECONDS

    def _follow(self) -> None:
        ray = _ray()
        try:
            for reference in self._actor.updates.options(num_returns="streaming").remote():
                if not self._take(self, ray.get(reference)):
                    return
            self.lose("has lost the actor of the role")
        except ray.exceptions.RayError as error:
            self.lose(f"is lost ({type(error).__name__})")
        except OSError as error:
            self._failure = error  # of a disk of this machine


@dataclass(kw_only=True)
class RayPlacement:
    """Roles on nodes of the cluster, see `rampline.jobs.launcher.Placement`.

    Attributes:
        config: of the run.
        tasks: the roles, the one that leads first.
        group: Ray's placement group.
        actors, nodes: a `RoleHost`, and where it is, by the name of each role.
        cores: of that node, by the same.
        head: address and port of the cluster's head.
        on_close: is called when the places are given back.
    """

    config: RunConfig
    tasks: Sequence[Task]
    group: Any
    actors: Mapping[str, Any]
    nodes: Mapping[str, RayNode]
    cores: Mapping[str, int]
    head: tuple[str, int]
    on_close: Callable[[RayPlacement], None]
    roles: list[RayRole] = field(default_factory=list)
    _copies: dict[str, Any] = field(default_factory=dict)
    _dataset: Any = None
    _folder: Path | None = None
    _watcher: threading.Thread | None = None
    # What an actor tells counts as long as the placement is open.
    _is_closed: threading.Event = field(default_factory=threading.Event)
    _taking: threading.Lock = field(default_factory=threading.Lock)

    @property
    def warning(self) -> str | None:
        return self.tasks[0].network_warning

    def start(self, task: Task, job: Job) -> RayRole:
        ray, actor, node = _ray(), self.actors[task.name], self.nodes[task.name]
        launched = float(job.environment.get("RAMPLINE_LAUNCHED_AT", time.monotonic()))
        try:
            job = dataclasses.replace(job, environment={**self._threads(task, job.folder), **job.environment})
            self._stage(actor, task, job.folder)
            age = time.monotonic() - launched
            described = ray.get(actor.start.remote(job, task, self.config, age), timeout=ACTOR_SECONDS)
        except ray.exceptions.RayTaskError as error:
            raise RunFailed(f"{task.name} cannot be started on node {node.address}: {error.cause}") from error
        except ray.exceptions.RayError as error:
            self.roles.append(role := self._role(task, job.folder, {}))
            role.lose("does not answer")
            raise PlaceLost(f"node {node.address} does not answer: {type(error).__name__}") from error
        self.roles.append(role := self._role(task, job.folder, described))
        if self._folder is None:
            self._folder = job.folder
            self._watcher = threading.Thread(target=self._watch, name="ray-watch", daemon=True)
            self._watcher.start()
        return role

    def close(self) -> frozenset[str]:
        with self._taking:
            self._is_closed.set()
        freeing = threading.Thread(target=self._free, daemon=True)
        freeing.start()
        # Without a head their calls do not come back. With one they do, and Ray ends a process with a thread that calls
        # it after its end.
        deadline = time.monotonic() + KILL_SECONDS
        for thread in filter(None, (freeing, self._watcher, *(role.follower for role in self.roles))):
            thread.join(max(0.0, deadline - time.monotonic()))
        self.on_close(self)
        return frozenset(role.node.id for role in self.roles if role.is_lost)

    def _threads(self, task: Task, folder: Path) -> dict[str, str]:
        """As many as in the run's first placement: with another number sums have other bits."""
        computing = [t.name for t in self.tasks if self.config.is_synchronous or t.role == "worker"]
        if task.name not in computing or "TF_NUM_INTRAOP_THREADS" in os.environ:
            return {}
        file = folder / THREADS
        if not file.is_file():
            beside = Counter(self.nodes[name].id for name in computing)
            devices = self.config.cluster.replicas if self.config.cluster.virtual_devices else 1
            shares = [self.cores[name] // (beside[self.nodes[name].id] * devices) for name in computing]
            write_json(file, {"intraop_threads": max(1, min(shares))})
        return {"TF_NUM_INTRAOP_THREADS": str(read_json(file)["intraop_threads"])}

    def _role(self, task: Task, folder: Path, described: dict) -> RayRole:
        return RayRole(
            task=task,
            folder=folder,
            actor=self.actors[task.name],
            node=self.nodes[task.name],
            take=self._take,
            described=described,
        )

    def _take(self, role: RayRole, update: Update) -> bool:
        with self._taking:
            if not self._is_closed.is_set():
                for change in update.changes:
                    apply(role.log.parents[1], change)
                role.learn(update)
            return not self._is_closed.is_set() and update.exit_status is None

    def _watch(self) -> None:
        """Ask the actors and the head as long as the placement is open, and tell the copies of a stop."""
        ray, asked, head_heard_at, told = _ray(), dict[Any, RayRole](), time.monotonic(), b""
        while not self._is_closed.wait(ASK_SECONDS / 2):
            waiting = {role.task.name for role in asked.values()}
            asked |= {role.ask(): role for role in self.roles if role.task.name not in waiting and not role.is_lost}
            answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ASK_SECONDS)
            for question in answered:
                role = asked.pop(question)
                with contextlib.suppress(ray.exceptions.RayError):  # what follows the actor says so
                    role.hear(ray.get(question))
            for role in self.roles:
                if role.is_silent:
                    role.lose("does not answer")
            if answers(*self.head):
                head_heard_at = time.monotonic()
            elif time.monotonic() - head_heard_at > SILENT_SECONDS:
                for role in self.roles:
                    role.lose("is out of reach, as is the head of the cluster")
            told = self._tell_stop(told)

    def _tell_stop(self, told: bytes) -> bytes:
        """Tell the copies what `stop.json` says here."""
        assert self._folder is not None
        file = RunDirectory(self._folder).stop_file
        content = file.read_bytes() if file.is_file() else told
        if content != told:
            for actor in self._copies.values():
                actor.change.remote(str(self._folder), Change("replace", file.name, content))
        return content

    def _free(self) -> None:
        ray = _ray()
        with contextlib.suppress(ray.exceptions.RayError):
            for actor in self.actors.values():
                ray.kill(actor)
            ray.util.remove_placement_group(self.group)
            # Until Ray counts the places as free there seems to be less room than there is.
            lost = {role.node.id for role in self.roles if role.is_lost}
            wait_until(lambda: _are_free(node for node in self.nodes.values() if node.id not in lost), RETURN_SECONDS)

    def _stage(self, actor: Any, task: Task, folder: Path) -> None:
        """Where the node lacks the folder, put it there, and the dataset; the first role of a node does it for all."""
        ray, node = _ray(), self.nodes[task.name].id
        token = folder / f"{TOKEN}-{secrets.token_hex(8)}"
        token.touch()
        try:
            dataset = RunDirectory(folder).read_identity().dataset
            lacking = ray.get(actor.lacks.remote([str(token), dataset]), timeout=ACTOR_SECONDS)
        finally:
            token.unlink()
        if dataset in lacking:
            self._dataset = self._dataset or ray.put(pack(Path(dataset)))
            ray.get(actor.stage.remote(dataset, self._dataset), timeout=STAGE_SECONDS)
        if str(token) in lacking:
            if node not in self._copies:
                ray.get(actor.stage_run.remote(str(folder), ray.put(pack_run(folder))), timeout=STAGE_SECONDS)
                self._copies[node] = actor
            ray.get(actor.tell_changes.remote(str(folder), task), timeout=ACTOR_SECONDS)


def _are_free(nodes: Iterable[RayNode]) -> bool:
    """Whether these have again what was free when they were chosen, or are gone."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return all(free[node.id].get("CPU", 0.0) >= node.free_cpus for node in nodes if node.id in free)


def _ray() -> Any:
    import ray

    return ray
