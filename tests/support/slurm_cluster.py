"""Debian's Slurm on this machine: a controller and three nodes, each a `slurmd` with a name and port of its own.

All of it listens on loopback ports, has a munge key of its own and lives in one folder.
"""

import contextlib
import getpass
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from rampline.devices import free_ports
from rampline.jobs.waiting import wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
# Debian has the daemons where only root looks.
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
# Beside them there is `g1`, with 16 cores and 4 GPUs, which is never up: jobs for it wait.
NODES = ("n1", "n2", "n3")
START_SECONDS = 30
# A requeued job waits until its credentials have run out (`cred_expire`), by default for two minutes: here for longer
# than the 20 s by which `test_a_job_is_preempted` tells that one with a start time of its own does not.
CONF = """ClusterName=rampline
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=25
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
CommunicationParameters=NoAddrCache
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,sched_min_interval=0
ReturnToService=2
SlurmdTimeout=10
KillWait=20
JobRequeue=0
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=4000
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=4000
NodeName=n3 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[3]} CPUs=2 RealMemory=4000
GresTypes=gpu
NodeName=g1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[4]} CPUs=16 RealMemory=4000 Gres=gpu:a100:4
PartitionName=gpu Nodes=g1 MaxTime=INFINITE
PartitionName=low Nodes=n[1-3] Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=15
PartitionName=high Nodes=n[1-3] Default=NO MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


@dataclass(kw_only=True)
class SlurmCluster:
    """A controller and nodes that run.

    Attributes:
        folder: with the configuration and all logs.
        daemons: processes by name: `munged`, `slurmctld`, and that of each node.
    """

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """By which Slurm's commands find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": PATH}

    def start(self, name: str) -> None:
        """Start `munged`, `slurmctld` or a node."""
        arguments = {
            "munged": ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket"]
            + [f"--{part}-file={self.folder}/munge.{part}" for part in ("key", "log", "pid", "seed")],
            "slurmctld": ["slurmctld", "-D"],
        }.get(name, ["slurmd", "-D", "-N", name])
        with open(self.folder / f"{name}.output", "ab") as output:
            self.daemons[name] = subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=os.environ | self.environment
            )

    def ask(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | self.environment, timeout=30
        )
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """What the controller knows of a job, such as its `JobState`."""
        words = self.ask("scontrol", "show", "job", job, "--oneliner").split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def await_state(self, job: str, *states: str, seconds: float = 60) -> str:
        """Wait until a job is in one of these states."""
        deadline = time.monotonic() + seconds
        while (state := self.job(job)["JobState"]) not in states:
            assert time.monotonic() < deadline, f"job {job} is {state}, not {' or '.join(states)}"
            time.sleep(0.1)
        return state

    def power_off(self, node: str) -> None:
        """End a node and all that runs on it at once, as a lost machine does; the controller is not told."""
        victims = [self.daemons[node].pid, *self.processes_on(node)]
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.daemons.pop(node).wait()

    def processes_on(self, node: str | None = None) -> list[int]:
        """Step daemons of a node, or of all, with what they have started."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                environment = process.environ()
                is_there = node in (None, environment.get("SLURMD_NODENAME"))
                if "SLURMD_NODENAME" in environment and self._is_ours(environment) and is_there:
                    found |= {process.pid, *(p.pid for p in process.parents() if p.name().startswith("slurmstepd"))}
        return sorted(found - {os.getpid()})

    def _is_ours(self, environment: dict[str, str]) -> bool:
        return environment.get("SLURM_CONF") == self.environment["SLURM_CONF"]

    def is_idle(self) -> bool:
        """Whether all nodes wait for jobs."""
        return self.ask("sinfo", "-h", "-N", "-p", "low", "-o", "%t").split() == ["idle"] * len(NODES)

    def cancel_all(self) -> None:
        """End all jobs, and have all nodes back."""
        self.ask("scancel", "--user", getpass.getuser())
        for node in NODES:
            if node not in self.daemons:
                self.start(node)
        assert wait_until(self.is_idle, START_SECONDS), self.ask("sinfo", "-N")


@contextmanager
def slurm_cluster() -> Iterator[SlurmCluster]:
    """A cluster for as long as the block lasts; skips the test where Slurm is not installed."""
    if missing := [name for name in PROGRAMS if not shutil.which(name, path=PATH)]:
        pytest.skip(f"no Slurm here ({', '.join(missing)}): nothing is run on it (Debian: apt install slurm-wlm munge)")
    cluster = SlurmCluster(folder=Path(tempfile.mkdtemp(prefix="rampline-slurm-")))
    try:
        _write(cluster.folder)
        for name in ("munged", "slurmctld", *NODES):
            cluster.start(name)
        assert wait_until(lambda: _answers(cluster), START_SECONDS), f"Slurm does not come up: see {cluster.folder}"
        yield cluster
    finally:
        _end(cluster)
        shutil.rmtree(cluster.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def running_slurm() -> Iterator[SlurmCluster]:
    """A cluster that all tests share."""
    with slurm_cluster() as cluster:
        yield cluster


@pytest.fixture
def slurm(running_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """The same with all its nodes, and without jobs, before and after the test; what the controller said is printed."""
    running_slurm.cancel_all()
    log = running_slurm.folder / "slurmctld.log"
    before = log.stat().st_size
    yield running_slurm
    sys.stdout.write(log.read_bytes()[before:].decode(errors="replace"))
    running_slurm.cancel_all()
    # `srun` below a command that has ended waits for steps on lost nodes, for 2 s longer than `KillWait`.
    assert wait_until(lambda: running_slurm.processes_on() == [], START_SECONDS), running_slurm.processes_on()


def _write(folder: Path) -> None:
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    folder.chmod(0o755)  # munge's clients may be other users
    for name in ("state", "spool"):
        (folder / name).mkdir()
    text = CONF.format(folder=folder, user=getpass.getuser(), ports=free_ports(2 + len(NODES)))
    (folder / "slurm.conf").write_text(text)
    (folder / "gres.conf").write_text("NodeName=g1 Name=gpu Type=a100 Count=4\n")


def _answers(cluster: SlurmCluster) -> bool:
    with contextlib.suppress(subprocess.CalledProcessError):
        return cluster.is_idle()
    return False


def _end(cluster: SlurmCluster) -> None:
    for pid in cluster.processes_on():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    for name, daemon in reversed(cluster.daemons.items()):
        daemon.kill() if name in NODES else daemon.terminate()
    for daemon in cluster.daemons.values():
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


if __name__ == "__main__":
    with slurm_cluster() as tried:
        sys.stdout.write(f"{tried.environment['SLURM_CONF']}\n")
        sys.stdout.flush()
        time.sleep(float(sys.argv[1]))
