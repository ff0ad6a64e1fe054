"""The launcher of a job of Slurm: roles are processes on the nodes that the job has, below one step per node.

This process is in the job itself, mostly as its batch script. Folders of runs must be the same on all nodes.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from rampline.config import RunConfig, to_dict
from rampline.errors import ClusterConfigError, Preempted, RamplineError, RunFailed
from rampline.jobs.exit_status import MACHINE_LOST
from rampline.jobs.heartbeat import RunningClock
from rampline.jobs.job import Job
from rampline.jobs.launcher import KILL_SECONDS, Node
from rampline.jobs.local import LOCAL, FileRole, LocalPlacement
from rampline.jobs.role_output import telling_line
from rampline.jobs.roles import check_devices, network_warning, role_counts
from rampline.jobs.tf_config import Task, tasks_of
from rampline.jobs.waiting import wait_until

# Slurm may be busy, and a step of a node that has just died is tried for as long.
PLACE_SECONDS = 60.0
# An agent tells something twice a second.
SILENT_SECONDS, SILENT_SECONDS_IN_THE_END = 10.0, 4.0
COMMAND_SECONDS = 30.0
# When the job leaves; the grace of a preemption may be no longer.
LEAVE_SECONDS = 20.0
AGAIN_SECONDS = 0.2
# What ends a requeued job must be over by then: a start time that has passed becomes one in two minutes.
REQUEUE_PAUSE_SECONDS = 10
# `gpu:a100:4(S:0-1)`, or `gpu:4`.
_GPUS = re.compile(r"\bgpu(?::([A-Za-z][\w.-]*))?:(\d+)")
# Of these widths, because a field that is cut off would be another one.
_FIELDS = (
    "NodeList:256",
    "Partition:256",
    "StateCompact:64",
    "CPUsState:64",
    "Gres:1024",
    "GresUsed:1024",
    "Memory:64",
)

Answer = TypeVar("Answer")


@dataclass(kw_only=True)
class NodeAgent:
    """The step of a node, `rampline.jobs.node_agent` by `srun`, and what it has told.

    Attributes:
        address: host name or address that others reach it by.
        step: the process of `srun`.
        number: of the step in the job.
        ports: free ones; with these it tells that it is there.
        pids, statuses: by name of role.
        said: the last line of `srun` itself, or why a role was refused.
        heard_at: when it last told something, by `clock`.
    """

    node: str
    address: str
    step: subprocess.Popen[str]
    number: str = ""
    ports: list[int] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    said: str = ""
    clock: RunningClock = field(default_factory=RunningClock)
    heard_at: float = 0.0
    telling: threading.Lock = field(default_factory=threading.Lock)

    def listen(self) -> None:
        """Hear it from now on."""
        threading.Thread(target=self._hear, name=f"agent-{self.node}", daemon=True).start()

    def _hear(self) -> None:
        for line in self.step.stdout or ():
            self.heard_at = self.clock()
            if not line.startswith("{"):
                self.said = line.strip() or self.said
                continue
            told = json.loads(line)
            if not told:
                self.tell()
            self.said = told.get("why", self.said)
            if "ports" in told:
                self.number, self.ports = told["step"], told["ports"]
            if "started" in told:
                self.pids[told["started"]] = told["pid"]
            if "ended" in told:
                self.statuses[told["ended"]] = told["status"]

    def tell(self, **order: object) -> None:
        """Give an order, or none; one that has ended does not hear it."""
        with contextlib.suppress(OSError, ValueError), self.telling:
            assert self.step.stdin is not None
            self.step.stdin.write(json.dumps(order) + "\n")
            self.step.stdin.flush()

    def is_lost(self, after_seconds: float) -> bool:
        """Whether it has ended, or has not been heard for so long."""
        return self.step.poll() is not None or self.clock() - self.heard_at > after_seconds

    def close(self) -> None:
        """Ask it to end: its roles end with it."""
        with contextlib.suppress(OSError):
            assert self.step.stdin is not None
            self.step.stdin.close()


@dataclass(kw_only=True)
class SlurmRole(FileRole):
    """A process on a node of the job."""

    agent: NodeAgent
    name: str
    is_killed: bool = False

    @property
    def exit_status(self) -> int | None:
        limit = SILENT_SECONDS_IN_THE_END if self.is_killed else SILENT_SECONDS
        status = self.agent.statuses.get(self.name)
        return MACHINE_LOST if status is None and self.agent.is_lost(limit) else status

    def signal(self, number: signal.Signals) -> None:
        self.is_killed = self.is_killed or number == signal.SIGKILL
        self.agent.tell(signal=self.name, number=int(number))

    def last_line(self) -> str:
        if self.name in self.agent.statuses:
            return telling_line(self.log, self.log_offset) or self.agent.said
        return f"node {self.agent.node} does not answer" + (f": {self.agent.said}" if self.agent.said else "")

    def describe(self) -> dict[str, object]:
        # Known as soon as it has been started, or never.
        wait_until(lambda: self.name in self.agent.pids or self.exit_status is not None, KILL_SECONDS)
        return self.entry(self.agent.pids.get(self.name), self.agent.node)


@dataclass(kw_only=True)
class SlurmPlacement:
    """Roles on nodes of the job, see `rampline.jobs.launcher.Placement`.

    Attributes:
        job: its number.
        agents: of each node that has roles, by the name of each role.
        lost: gets the nodes that do not answer in the end.
    """

    job: str
    config: RunConfig
    tasks: Sequence[Task]
    agents: dict[str, NodeAgent]
    lost: set[str]
    starts: int = 0
    machine = None

    @property
    def warning(self) -> str | None:
        return network_warning(self.config, self.tasks)

    def start(self, task: Task, job: Job) -> SlurmRole:
        agent, environment = self.agents[task.name], dict(job.environment)
        launched_at = float(environment.pop("RAMPLINE_LAUNCHED_AT", time.monotonic()))
        self.starts += 1
        files = FileRole.files(task, job, agent.node)
        role = SlurmRole(**files, agent=agent, name=f"{task.name}.{self.starts}")
        agent.tell(
            start=role.name,
            function=job.function,
            folder=str(job.folder),
            tf_config=task.to_json(),
            config=to_dict(self.config),
            environment=environment,
            age_seconds=time.monotonic() - launched_at,
        )
        return role

    def close(self) -> frozenset[str]:
        unclear = end_agents(self.job, {agent.node: agent for agent in self.agents.values()}.values())
        self.lost.update(unclear)
        return unclear


@dataclass(frozen=True)
class Slurm:
    """Starts processes on the nodes of this job, see `rampline.jobs.launcher.Launcher`.

    A worker has a node for itself; the chief of parameter servers and these are on the workers' nodes, too.

    Attributes:
        lost: nodes that did not answer. None of them is asked again: Slurm gives a job that goes on without a node no
            other, and takes minutes to see that it is gone.
    """

    lost: set[str] = field(default_factory=set)

    def nodes(self) -> Sequence[Node]:
        text = _ask("sinfo", "--all", "--noheader", "--Node", f"--Format={','.join(_FIELDS)}")
        if text is None:
            raise ClusterConfigError("Slurm does not answer: `sinfo` says why")
        found: dict[str, Node] = {}
        for node in map(_node, text.splitlines()):
            others = found[node.name].groups if node.name in found else ()
            found[node.name] = replace(node, groups=tuple(sorted({*others, *node.groups})))
        return list(found.values())

    def check(self, config: RunConfig) -> None:
        nodes, wanted = self._nodes(), config.cluster.min_workers or nodes_of(config)
        if len(nodes) < wanted:
            raise ClusterConfigError(
                f"cluster.workers={config.cluster.workers} needs {wanted} nodes, this job of Slurm has {len(nodes)} "
                f"that are up: submit it with more (`rampline submit` asks for as many as the study needs)"
            )
        check_devices(config)

    def room(self, config: RunConfig, *, avoid: Collection[str] = ()) -> int:
        return len(self._up(avoid) or ())

    def place(self, config: RunConfig, *, avoid: Collection[str] = (), workers: int | None = None) -> SlurmPlacement:
        job, wanted = _job(), workers or nodes_of(config)
        least = wanted if workers is None else config.cluster.min_workers or wanted
        nodes = self._nodes(avoid)
        agents = _start_agents(nodes, ports=sum(role_counts(config).values())) if len(nodes) >= least else []
        try:
            wait_until(lambda: len(_ready(agents)) >= wanted or _all_told(agents), PLACE_SECONDS)
            ready = _ready(agents)[:wanted]
            if len(ready) < least:
                raise _no_room(job, config, len(nodes), len(ready) if agents else len(nodes), agents)
        except BaseException:
            end_agents(job, agents)
            raise
        unclear = end_agents(job, [agent for agent in agents if agent not in ready])
        if len(ready) < wanted:
            self.lost.update(unclear)
        return _placement(job, config, ready, self.lost)

    def _nodes(self, avoid: Collection[str] = ()) -> dict[str, str]:
        """Of `_up`, once Slurm answers: its controller may be about to be started again."""
        if (nodes := _wait_for(lambda: self._up(avoid), PLACE_SECONDS)) is None:
            raise ClusterConfigError("Slurm does not answer: `squeue` says why")
        return nodes

    def _up(self, avoid: Collection[str]) -> dict[str, str] | None:
        nodes = _nodes(_job())
        return nodes and {node: nodes[node] for node in nodes if node not in {*avoid, *self.lost}}

    def place_jobs(self, jobs: Sequence[Job]) -> LocalPlacement:
        return LOCAL.place_jobs(jobs)  # this machine is one of the job's


SLURM = Slurm()


def nodes_of(config: RunConfig) -> int:
    """How many nodes a run has roles on."""
    return config.cluster.workers if role_counts(config).get("worker") else 1


def _placement(job: str, config: RunConfig, agents: Sequence[NodeAgent], lost: set[str]) -> SlurmPlacement:
    places = [(role, i) for role, count in role_counts(config, len(agents)).items() for i in range(count)]
    where = {place: agents[place[1] % len(agents)] for place in places}
    cluster: dict[str, tuple[str, ...]] = {}
    for (role, _), agent in where.items():
        # Nodes that are one machine may have found the same port.
        taken = {address for addresses in cluster.values() for address in addresses}
        found = (f"{agent.address}:{port}" for port in agent.ports)
        cluster[role] = (*cluster.get(role, ()), next(address for address in found if address not in taken))
    tasks = tasks_of(cluster)
    by_name = {task.name: where[task.role, task.index] for task in tasks}
    return SlurmPlacement(job=job, config=config, tasks=tasks, agents=by_name, lost=lost)


def _no_room(job: str, config: RunConfig, up: int, found: int, agents: Sequence[NodeAgent]) -> RamplineError:
    """A job that has lost a node is to be queued again, as after a preemption; another one would fail again."""
    said = next((f" ({agent.node}: {agent.said})" for agent in agents if agent.said), "")
    text = f"job {job} of Slurm has {found} of the {nodes_of(config)} nodes that the run needs{said}"
    is_smaller = up < int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))
    if not is_smaller:
        return RunFailed(text)
    return Preempted(f"stopped because {text}", config.cluster.preempted_exit_status)


def _start_agents(nodes: dict[str, str], *, ports: int) -> list[NodeAgent]:
    agents = [NodeAgent(node=node, address=address, step=_srun(node, ports)) for node, address in nodes.items()]
    for agent in agents:
        agent.listen()
    return agents


def _srun(node: str, ports: int) -> subprocess.Popen[str]:
    """A step with all that the job has on a node, beside other steps."""
    command = ["srun", "--overlap", "--nodes=1", "--ntasks=1", f"--nodelist={node}", "--cpu-bind=none"]
    command += ["--unbuffered", "--job-name=rampline-agent", "--export=ALL"]
    # Versions from 22.05 to before 23.11 do not pass it on from the job to its steps: they would have one core.
    if cores := os.environ.get("SLURM_CPUS_PER_TASK"):
        command.append(f"--cpus-per-task={cores}")
    return subprocess.Popen(
        [*command, sys.executable, "-P", "-m", "rampline.jobs.node_agent", str(ports)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for the command alone
    )


def _ready(agents: Sequence[NodeAgent]) -> list[NodeAgent]:
    return [agent for agent in agents if agent.ports and agent.step.poll() is None]


def _all_told(agents: Sequence[NodeAgent]) -> bool:
    return all(agent.ports or agent.step.poll() is not None for agent in agents)


def end_agents(job: str, agents: Collection[NodeAgent]) -> frozenset[str]:
    """End agents and their roles; the nodes of which it is not known that they have."""
    for agent in agents:
        agent.close()
    wait_until(lambda: all(agent.is_lost(SILENT_SECONDS_IN_THE_END) for agent in agents), KILL_SECONDS)
    unclear = [agent for agent in agents if agent.step.poll() != 0]
    for agent in unclear:
        if agent.number:
            _ask("scancel", f"{job}.{agent.number}", seconds=1.0)
        agent.step.kill()
        agent.step.wait()
    return frozenset(agent.node for agent in unclear)


def is_running(say: Callable[[str], None]) -> bool:
    """Whether this job was neither cancelled nor ended; one that is preempted runs until its grace is over.

    Where Slurm does not answer nobody knows, and `say` gets a line.
    """
    job = _job()
    state = _wait_for(lambda: _ask("squeue", "--noheader", f"--jobs={job}", "--format=%T"), LEAVE_SECONDS)
    if state is None:
        say(f"job {job} is not queued again: Slurm does not answer, `squeue` says why")
    return state in ("RUNNING", "SIGNALING")


def requeue_at_exit(say: Callable[[str], None]) -> Callable[[], None]:
    """A function that has this job queued again when this process ends; it starts anew as soon as there is room.

    Where Slurm does not take it `say` gets a line.

    To be called before Prefect is imported: exit handlers run in the reverse of their order, and from the moment that
    a job is queued again Slurm ends its processes.
    """
    asked = threading.Event()
    atexit.register(lambda: _requeue(say) if asked.is_set() else None)
    return asked.set


def _requeue(say: Callable[[str], None]) -> None:
    """Slurm lets a requeued job wait for two minutes, until the credentials of its first start have run out, unless its
    start time is later than its end.
    """
    job = _job()
    # Slurm ends this process, and what asks it in its name, between the two.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if _wait_for(lambda: _ask("scontrol", "requeue", job), LEAVE_SECONDS) is None:
        say(f"job {job} is not queued again: Slurm does not take it, `scontrol requeue {job}` says why")
        return
    _ask("scontrol", "update", f"jobid={job}", f"starttime=now+{REQUEUE_PAUSE_SECONDS}")


def _job() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        raise ClusterConfigError(
            "cluster.launcher=slurm: this is no job of Slurm: `rampline submit STUDY --launcher slurm` makes one"
        )
    # The number of one of an array's tasks is that of the array: all would be queued again.
    array = [os.environ.get(name, "") for name in ("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")]
    return "_".join(array) if all(array) else job


def _node(line: str) -> Node:
    """A node in one of its partitions, from a line of `sinfo`."""
    name, partition, state, by_state, gpus, used_gpus, megabytes = line.split()
    _, free_cores, _, cores = by_state.split("/")
    count = _count_gpus(gpus)
    return Node(
        name=name,
        state=state,
        cores=int(cores),
        free_cores=int(free_cores),
        gpus=count,
        free_gpus=count - _count_gpus(used_gpus),
        gpu_kind=", ".join(kind for kind, _ in _GPUS.findall(gpus)),
        memory_bytes=int(megabytes) * 2**20,
        groups=(partition,),
    )


def _count_gpus(resources: str) -> int:
    return sum(int(count) for _, count in _GPUS.findall(resources))


def _nodes(job: str) -> dict[str, str] | None:
    """Addresses of the job's nodes that are up, by name; `None` where Slurm does not answer.

    A node that was lost, and is back, may be another job's.
    """
    nodes = _ask("squeue", "--noheader", f"--jobs={job}", "--format=%N")
    lines = _ask("sinfo", "--all", "--noheader", "--Node", f"--nodes={nodes}", "--format=%N %T %o") if nodes else nodes
    if lines is None:
        return None
    states = [line.split() for line in lines.splitlines()]
    is_up = {node: not state.startswith(("down", "fail")) and "*" not in state for node, state, _ in states}
    return {node: address for node, _, address in states if is_up[node]}


def _wait_for(ask: Callable[[], Answer | None], seconds: float) -> Answer | None:
    """What is answered at last; `None` where nothing is in time."""
    answers: list[Answer | None] = [None]
    wait_until(lambda: answers.append(ask()) or answers[-1] is not None, seconds, every=AGAIN_SECONDS)
    return answers[-1]


def _ask(*command: str, seconds: float = COMMAND_SECONDS) -> str | None:
    """What one of Slurm's commands prints; `None` where it fails, or does not answer in time."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds).stdout.strip()
    except (subprocess.SubprocessError, OSError):
        return None
