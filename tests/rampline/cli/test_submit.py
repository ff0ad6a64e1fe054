"""Studies that run as jobs of Slurm: on a controller and three nodes that are processes of this machine."""

import dataclasses
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from command_line import RAMPLINE, Rampline, environment_with, wait_until
from faults import Hold, assert_bit_equal, recoveries
from own_prefect import own_prefect
from runs import SUPPORT, make_config
from slurm_cluster import SlurmCluster

from rampline.config import to_dict
from rampline.files import read_json
from rampline.jobs.slurm import Slurm
from rampline.jobs.supervisor import supervise
from rampline.record.attempts import read_workers
from rampline.record.run_directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ("digits", "--only", "multi-worker", "--set", "parity.steps=0", "--set", "explain.steps=0")
SMALL += ("--set", "data.limit=20")
# BatchNorm, Dropout and Adam; code is imported only where a study file names it.
HELD = """name: held
base:
  epochs: 12
  steps_per_call: 4
  data: {source: digits, image_size: 28, limit: 20}
  model: {name: "small_models:with_all_state"}
  explain: {steps: 0}
  parity: {steps: 0}
runs:
  multi-worker: {set: {strategy: multi_worker, cluster: {workers: 2}}}
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")


@dataclasses.dataclass(frozen=True)
class Submitted:
    """A job, and where its one run is."""

    job: str
    directory: RunDirectory
    cluster: SlurmCluster

    @property
    def printed(self) -> str:
        return (self.directory.path.parent / "job.log").read_text()

    def times(self, event: str) -> list[float]:
        file = self.directory.events_file
        return [e["time"] for e in self.directory.read_events() if e["event"] == event] if file.is_file() else []

    def await_epochs(self, count: int) -> None:
        wait_until(lambda: len(self.times("epoch")) >= count, 120)

    def await_starts(self, count: int) -> None:
        wait_until(lambda: len(self.times("started")) == count, 120)

    def go(self) -> None:
        (self.directory.path / "go").touch(mode=0o600)

    def node_of(self, role: str) -> str:
        roles = read_json(self.directory.roles_file)["roles"]
        return next(r["host"] for r in roles if f"{r['role']}-{r['index']}" == role)


Submit = Callable[..., Submitted]
TrainedHere = Callable[[Submitted], RunDirectory]


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables that lead all jobs to one Prefect server: beside the tests of the others, which wait less."""
    with own_prefect(tmp_path_factory.mktemp("prefect")) as (_, variables):
        yield variables


@pytest.fixture
def submit(
    slurm: SlurmCluster, rampline: Rampline, home: Path, prepared: None, prefect: dict[str, str]
) -> Iterator[Submit]:
    """`submit(*ARGUMENTS)` hands a study in; what its job printed is there where a test fails."""

    def call(*arguments: str) -> Submitted:
        environment = prefect | slurm.environment | {"PYTHONPATH": str(SUPPORT)}
        done = rampline("submit", *arguments, prefect=environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        (folder,) = home.glob("runs/*/*")
        return Submitted(done.stdout.split(":")[0].removeprefix("job "), RunDirectory(folder / "multi-worker"), slurm)

    yield call
    for log in home.glob("runs/*/*/job.log"):
        sys.stdout.write(log.read_text())


@pytest.fixture
def held(tmp_path: Path) -> str:
    """A study whose run a test may hold."""
    file = tmp_path / "held.yaml"
    file.write_text(HELD)
    return str(file)


@pytest.fixture
def unhurried(held: str) -> str:
    """The same study, whose run takes its time until `Submitted.go`: after 3 epochs 1.6 s for each, 40 s in all."""
    slower = HELD.replace("with_all_state", "slow_with_all_state").replace("steps_per_call: 4", "steps_per_call: 1")
    Path(held).write_text(slower.replace("epochs: 12", "epochs: 28"))
    return held


@pytest.fixture(scope="module")
def trained_here(forks: None, tmp_path_factory: pytest.TempPathFactory) -> TrainedHere:
    """`trained_here(submitted)`: the same run by processes of this machine, that nothing has happened to.

    Runs of the same settings are trained once.
    """
    trained = dict[str, RunDirectory]()

    def train(submitted: Submitted) -> RunDirectory:
        config = submitted.directory.read_config()
        config = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, launcher="local"))
        settings = json.dumps(to_dict(config))
        if settings not in trained:
            directory = RunDirectory(tmp_path_factory.mktemp("here") / "run")
            directory.create(config, submitted.directory.read_identity())
            (directory.path / "go").touch(mode=0o600)
            supervise(directory, on_event=lambda event: None, log=lambda line: None)
            trained[settings] = directory
        return trained[settings]

    return train


def test_a_study_is_a_job_and_trains_as_on_one_machine(submit: Submit, trained_here: TrainedHere) -> None:
    submitted = submit(*SMALL, "--set", "epochs=2", "--", "--partition=low")
    script = (submitted.directory.path.parent / "job.sh").read_text()
    assert "\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=2\n" in script
    assert "\n#SBATCH --partition=low\n" in script
    assert "--no-kill" not in script
    here = submitted.cluster.await_state(submitted.job, *ENDED, seconds=150)
    assert here == "COMPLETED", submitted.printed
    assert "report " in submitted.printed
    assert "multi-worker: workers on n1, n2" in submitted.printed
    assert [submitted.node_of(f"worker-{i}") for i in (0, 1)] == ["n1", "n2"]
    assert submitted.cluster.processes_on() == []
    assert_bit_equal(submitted.directory, trained_here(submitted))


def test_nodes_are_listed_with_what_is_free(slurm: SlurmCluster, rampline: Rampline) -> None:
    slurm.ask("sbatch", "--nodelist=n2", "--cpus-per-task=1", "-o", "/dev/null", "--wrap", "sleep 60")
    wait_until(lambda: slurm.ask("squeue", "-h", "-o", "%T") == "RUNNING", 10)
    done = rampline("nodes", "--launcher", "slurm", prefect=slurm.environment)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, *rows = [line.split("  ") for line in done.stdout.splitlines() if line.strip()]
    shown = {cells[0]: cells for cells in ([cell.strip() for cell in row if cell.strip()] for row in rows)}
    assert shown["n1"] == ["n1", "idle", "2", "2", "0", "4 GiB", "high, low*"]
    assert shown["n2"] == ["n2", "mix", "2", "1", "0", "4 GiB", "high, low*"]
    assert shown["g1"][2:] == ["16", "16", "4", "4", "a100", "4 GiB", "gpu"]


def test_gpus_are_asked_for_where_the_partition_has_some(submit: Submit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "low")
    submitted = submit(*SMALL, "--", "-pgpu", "--comment=it's")
    script = (submitted.directory.path.parent / "job.sh").read_text()
    assert "\n#SBATCH --cpus-per-task=4\n#SBATCH --gpus-per-node=1\n" in script
    job = submitted.cluster.job(submitted.job)
    assert (job["JobState"], job["Partition"], job["Comment"]) == ("PENDING", "gpu", "it's")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--", "--partition=none"], "Slurm has no partition none (-- --partition=NAME): it has gpu, high, low"),
        (["--set", "cluster.replicas=8", "--", "-p", "gpu"], "cluster.replicas=8 needs 8 GPUs on a node: there are 4"),
        (["--", "--qos"], "sbatch refuses "),
    ],
)
def test_what_slurm_cannot_give_is_one_line(
    arguments: list[str], line: str, slurm: SlurmCluster, rampline: Rampline
) -> None:
    done = rampline("submit", *SMALL, *arguments, prefect=slurm.environment)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("rampline: error: ")
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


def lose_the_node_of(role: str, submitted: Submitted, hold: Hold) -> tuple[str, float]:
    """Once the role stands still; the node, and when that was."""
    hold.await_stop()
    lost, at = submitted.node_of(role), time.time()
    submitted.cluster.power_off(lost)
    hold.forget()
    return lost, at


@pytest.mark.long
def test_nodes_are_lost(submit: Submit, held: str, trained_here: TrainedHere) -> None:
    submitted = submit(held, "--spares", "1", "--set", "cluster.min_workers=1", "--set", "cluster.sum=exact")
    hold = Hold(submitted.directory, "worker-1", step=20)
    # A spare takes the place of the first that is lost; then one worker goes on.
    losses = []
    for workers in (2, 1):
        losses.append(lose_the_node_of("worker-1", submitted, hold))
        submitted.await_starts(len(losses) + 1)
        hosts = [role["host"] for role in read_json(submitted.directory.roles_file)["roles"]]
        assert len(hosts) == workers
        assert losses[-1][0] not in hosts
    hold.let_go()

    assert submitted.cluster.await_state(submitted.job, *ENDED) == "COMPLETED", submitted.printed
    assert read_workers(submitted.directory.attempts_file) == [2, 2, 1]
    costs = recoveries(submitted.directory, [at for _, at in losses])
    sys.stdout.write(f"nodes lost: {costs}\n")
    assert max(cost.detected_after for cost in costs) < 15
    assert max(cost.resumed_after for cost in costs) < 45
    assert_bit_equal(submitted.directory, trained_here(submitted))


@pytest.mark.long
def test_a_job_is_preempted(submit: Submit, unhurried: str, trained_here: TrainedHere) -> None:
    submitted = submit(unhurried)
    cluster = submitted.cluster
    submitted.await_epochs(2)

    began, node = time.time(), submitted.node_of("worker-0")
    other = cluster.ask(
        *("sbatch", "--parsable", "-p", "high", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2")
    )
    wait_until(lambda: len(submitted.times("stopped")) == 1, 30)
    saved = submitted.times("stopped")[0] - began
    cluster.await_state(other, "COMPLETED")
    cluster.await_state(submitted.job, "RUNNING", seconds=130)
    runs = time.time() - began
    submitted.await_starts(2)
    trains = time.time() - began

    submitted.go()
    assert cluster.await_state(submitted.job, *ENDED, seconds=180) == "COMPLETED", submitted.printed
    assert cluster.job(submitted.job)["Restarts"] == "1"
    sys.stdout.write(
        f"preempted: checkpoint after {saved:.1f} s, runs again after {runs:.1f} s, trains after {trains:.1f} s\n"
    )
    assert saved < 2
    assert runs < 20
    assert_bit_equal(submitted.directory, trained_here(submitted))


@pytest.mark.long
def test_the_time_limit_comes_near(submit: Submit, unhurried: str, trained_here: TrainedHere) -> None:
    """A minute before it, or up to two: as often as it takes to the end."""
    # It takes 155 s and more, and the stop comes 90 to 120 s after the start of the job.
    submitted = submit(unhurried, "--set", "epochs=100", "--", "--time=3")
    wait_until(lambda: len(submitted.times("stopped")) > 0, 240)
    submitted.go()
    state = submitted.cluster.await_state(submitted.job, *ENDED, seconds=540)
    assert state == "COMPLETED", submitted.printed
    assert len(submitted.times("stopped")) == len(submitted.times("started")) - 1
    assert_bit_equal(submitted.directory, trained_here(submitted))


@pytest.mark.long
@pytest.mark.parametrize("spares", ["0", "1"])
def test_the_first_node_is_lost(spares: str, submit: Submit, held: str, trained_here: TrainedHere) -> None:
    """With it the command of the job: Slurm queues the job again, or another node does, once credentials run out."""
    submitted = submit(held, "--spares", spares)
    hold = Hold(submitted.directory, "worker-1", step=20)
    hold.await_stop()
    lost = submitted.node_of("worker-0")
    submitted.cluster.power_off(lost)
    hold.let_go()
    wait_until(lambda: submitted.cluster.job(submitted.job)["Restarts"] != "0", 240)
    if spares == "1":  # the job wants three nodes, as before
        submitted.cluster.start(lost)
    wait_until(lambda: len(submitted.times("started")) == 2, 200)
    assert submitted.cluster.job(submitted.job)["Restarts"] == "1"
    assert submitted.cluster.await_state(submitted.job, *ENDED) == "COMPLETED", submitted.printed
    assert_bit_equal(submitted.directory, trained_here(submitted))


@pytest.mark.long
def test_without_a_spare_the_job_is_queued_again_and_cancelled_it_is_over(submit: Submit, unhurried: str) -> None:
    submitted = submit(unhurried)
    hold = Hold(submitted.directory, "worker-1", step=20)
    lost, _ = lose_the_node_of("worker-1", submitted, hold)
    hold.let_go()
    submitted.await_starts(2)
    assert submitted.node_of("worker-1") != lost
    submitted.await_epochs(len(submitted.times("epoch")) + 1)

    began = time.time()
    submitted.cluster.ask("scancel", submitted.job)
    wait_until(lambda: submitted.cluster.processes_on() == [], 40)
    gone = time.time() - began
    submitted.cluster.await_state(submitted.job, "CANCELLED")
    saved = submitted.times("stopped")[0] - began
    sys.stdout.write(f"scancel: checkpoint after {saved:.1f} s, everything gone after {gone:.1f} s\n")
    assert "saved" in read_json(submitted.directory.stop_file)
    assert saved < 2
    assert submitted.cluster.job(submitted.job)["Restarts"] == "1"


@pytest.mark.long
def test_slurmd_dies_and_its_steps_do_not(submit: Submit, unhurried: str, trained_here: TrainedHere) -> None:
    """Slurm queues the job again, and can end nothing on that node."""
    submitted = submit(unhurried)
    submitted.await_epochs(2)
    node = submitted.node_of("worker-1")
    submitted.cluster.daemons[node].kill()
    submitted.cluster.daemons.pop(node).wait()
    wait_until(lambda: submitted.cluster.job(submitted.job)["Restarts"] == "1", 60)
    submitted.cluster.await_state(submitted.job, "PENDING")
    assert submitted.cluster.processes_on(node)
    gone = wait_until(lambda: submitted.cluster.processes_on(node) == [], 90)
    sys.stdout.write(f"slurmd killed: its node is empty {gone:.0f} s after the job is queued again\n")
    submitted.go()
    assert submitted.cluster.await_state(submitted.job, *ENDED, seconds=300) == "COMPLETED", submitted.printed
    assert node not in [role["host"] for role in read_json(submitted.directory.roles_file)["roles"]]
    assert_bit_equal(submitted.directory, trained_here(submitted))


@pytest.mark.long
def test_the_command_of_a_job_is_killed(submit: Submit, unhurried: str, trained_here: TrainedHere) -> None:
    submitted = submit(unhurried)
    submitted.await_epochs(2)
    processes = map(psutil.Process, submitted.cluster.processes_on())
    (command,) = (process for process in processes if "--launcher" in process.cmdline())
    command.kill()
    gone = wait_until(lambda: submitted.cluster.processes_on() == [], 60)
    sys.stdout.write(f"command killed: everything gone after {gone:.1f} s\n")
    assert submitted.cluster.await_state(submitted.job, *ENDED) == "FAILED"
    submitted.go()
    again = submitted.cluster.ask("sbatch", "--parsable", str(submitted.directory.path.parent / "job.sh"))
    assert submitted.cluster.await_state(again, *ENDED, seconds=180) == "COMPLETED", submitted.printed
    assert_bit_equal(submitted.directory, trained_here(submitted))


@pytest.mark.long
def test_a_controller_that_is_started_again_is_waited_for(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    job = slurm.ask("sbatch", "--parsable", "--nodes=2", "-o", "/dev/null", "--wrap", "sleep 300")
    slurm.await_state(job, "RUNNING")
    config = make_config("multi_worker", workers=2)
    for name, value in {**slurm.environment, "SLURM_JOB_ID": job}.items():
        monkeypatch.setenv(name, value)
    controller = slurm.daemons.pop("slurmctld")
    controller.terminate()
    controller.wait()
    began = time.monotonic()
    assert Slurm().room(config) == 0
    patience = time.monotonic() - began  # of Slurm's own command
    again = threading.Timer(patience + 2, slurm.start, ["slurmctld"])
    again.start()
    Slurm().check(config)
    again.join()
    sys.stdout.write(f"squeue gives up after {patience:.0f} s\n")
    assert Slurm().room(config) == 2


TASK_OF_ARRAY = """
import os
from rampline.jobs.slurm import is_running, requeue_at_exit
again = requeue_at_exit(print)
print("began", flush=True)
if os.environ["SLURM_JOB_ID"] == os.environ["SLURM_ARRAY_JOB_ID"] and "SLURM_RESTART_COUNT" not in os.environ:
    assert is_running(print)
    again()
"""


@pytest.mark.long
def test_a_task_of_an_array_alone_is_queued_again(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK_OF_ARRAY)
    options = "--requeue", "--array=1-2", "--open-mode=append", f"--output={tmp_path}/%a.log"
    slurm.ask("sbatch", *options, "--wrap", f"{sys.executable} {tmp_path / 'task.py'}")
    logs = [tmp_path / "1.log", tmp_path / "2.log"]

    def begun() -> list[int]:
        return sorted(log.read_text().count("began") if log.is_file() else 0 for log in logs)

    wait_until(lambda: begun()[1] == 2, 60)
    wait_until(lambda: not slurm.ask("squeue", "--noheader"), 60)
    assert begun() == [1, 2]


@pytest.mark.long
def test_a_study_runs_in_an_allocation(
    slurm: SlurmCluster, prefect: dict[str, str], home: Path, prepared: None
) -> None:
    allocation = ("salloc", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=2")
    command = (str(RAMPLINE), "run", *SMALL, "--set", "epochs=2", "--launcher", "slurm")
    environment = environment_with(home, prefect | slurm.environment)
    done = subprocess.run(
        [*allocation, *command], capture_output=True, text=True, env=environment, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "multi-worker: workers on n1, n2" in done.stdout
    wait_until(slurm.is_idle, 30)
