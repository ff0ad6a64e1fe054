"""Studies that run as jobs of Slurm: on a controller and three nodes that are processes of this machine."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Rampline, wait_until
from faults import assert_bit_equal
from flow_runs import Flows
from runs import SUPPORT
from slurm_cluster import SlurmCluster

from rampline.files import read_json
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ("submit", "digits", "--only", "multi-worker", "--set", "parity.steps=0", "--set", "explain.steps=0")
SMALL += ("--set", "data.limit=20")
# BatchNorm, Dropout and Adam; some 15 s of training.
LONG = (*SMALL, "--set", "model.name=small_models:with_all_state", "--set", "epochs=100", "--set", "steps_per_call=4")
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

    def node_of(self, role: str) -> str:
        roles = read_json(self.directory.roles_file)["roles"]
        return next(r["host"] for r in roles if f"{r['role']}-{r['index']}" == role)


Submit = Callable[..., Submitted]


@pytest.fixture
def submit(slurm: SlurmCluster, rampline: Rampline, home: Path, prepared: None, stack: Flows) -> Submit:
    """`submit(*ARGUMENTS)` hands a study in."""

    def call(*arguments: str) -> Submitted:
        environment = stack.prefect | slurm.environment | {"PYTHONPATH": str(SUPPORT)}
        done = rampline(*arguments, prefect=environment)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        (folder,) = home.glob("runs/digits/*")
        return Submitted(done.stdout.split(":")[0].removeprefix("job "), RunDirectory(folder / "multi-worker"), slurm)

    return call


def trained_here(submitted: Submitted, folder: Path) -> RunDirectory:
    """The same run by processes of this machine, that nothing has happened to."""
    directory, config = RunDirectory(folder / "here"), submitted.directory.read_config()
    cluster = dataclasses.replace(config.cluster, launcher="local")
    directory.create(dataclasses.replace(config, cluster=cluster), submitted.directory.read_identity())
    supervise(directory, on_event=lambda event: None, log=lambda line: None)
    return directory


def test_a_study_is_a_job_and_trains_as_on_one_machine(submit: Submit, forks: None, tmp_path: Path) -> None:
    submitted = submit(*SMALL, "--set", "epochs=2", "--", "--partition=low")
    script = (submitted.directory.path.parent / "job.sh").read_text()
    assert "\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=2\n" in script
    assert "\n#SBATCH --partition=low\n" in script
    here = submitted.cluster.await_state(submitted.job, *ENDED)
    assert here == "COMPLETED", submitted.printed
    assert "report " in submitted.printed
    assert [submitted.node_of(f"worker-{i}") for i in (0, 1)] == ["n1", "n2"]
    assert submitted.cluster.processes_on() == []
    assert_bit_equal(submitted.directory, trained_here(submitted, tmp_path))


def test_gpus_are_asked_for_where_the_partition_has_some(submit: Submit) -> None:
    submitted = submit(*SMALL, "--", "-p", "gpu")
    script = (submitted.directory.path.parent / "job.sh").read_text()
    assert "\n#SBATCH --cpus-per-task=4\n#SBATCH --gpus-per-node=1\n" in script
    assert submitted.cluster.job(submitted.job)["JobState"] == "PENDING"


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
    done = rampline(*SMALL, *arguments, prefect=slurm.environment)
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("rampline: error: ")
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_preempted_job_saves_is_queued_again_and_goes_on(submit: Submit, forks: None, tmp_path: Path) -> None:
    submitted = submit(*LONG)
    submitted.await_epochs(5)
    cluster, began = submitted.cluster, time.time()
    other = cluster.ask(
        "sbatch", "--parsable", "-p", "high", "-N3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 2"
    )
    wait_until(lambda: len(submitted.times("stopped")) == 1, 30)
    saved = submitted.times("stopped")[0] - began
    cluster.await_state(other, "COMPLETED")
    freed = time.time()
    wait_until(lambda: cluster.job(submitted.job)["JobState"] == "RUNNING", 130)
    runs = time.time()
    wait_until(lambda: len(submitted.times("started")) == 2, 60)
    trains = time.time()
    assert cluster.await_state(submitted.job, *ENDED) == "COMPLETED", submitted.printed
    assert cluster.job(submitted.job)["Restarts"] == "1"
    sys.stdout.write(
        f"preempted: checkpoint after {saved:.1f} s, the other job done after {freed - began:.1f} s, "
        f"runs again after {runs - began:.1f} s, trains after {trains - began:.1f} s\n"
    )
    assert saved < 2
    assert runs - began < 20
    assert_bit_equal(submitted.directory, trained_here(submitted, tmp_path))


@pytest.mark.long
def test_a_spare_replaces_a_node_that_dies(submit: Submit, forks: None, tmp_path: Path) -> None:
    submitted = submit(*LONG, "--spares", "1")
    submitted.await_epochs(5)
    lost, began = submitted.node_of("worker-1"), time.time()
    submitted.cluster.power_off(lost)
    wait_until(lambda: len(submitted.times("started")) == 2, 60)
    trains = time.time() - began
    assert submitted.node_of("worker-1") != lost
    assert submitted.cluster.await_state(submitted.job, *ENDED) == "COMPLETED", submitted.printed
    attempt = json.loads(submitted.directory.attempts_file.read_text().splitlines()[1])
    noticed = attempt["time"] - attempt["seconds"] + attempt["lost_after_seconds"] - began
    sys.stdout.write(f"a node lost: noticed after {noticed:.1f} s, trains again after {trains:.1f} s\n")
    assert noticed < 15
    assert trains < 45
    assert_bit_equal(submitted.directory, trained_here(submitted, tmp_path))


@pytest.mark.long
def test_a_cancelled_job_saves_and_is_over(submit: Submit) -> None:
    submitted = submit(*LONG, "--set", "epochs=2000")
    submitted.await_epochs(5)
    began = time.time()
    submitted.cluster.ask("scancel", submitted.job)
    wait_until(lambda: submitted.cluster.processes_on() == [], 40)
    gone = time.time() - began
    submitted.cluster.await_state(submitted.job, "CANCELLED")
    assert "saved" in read_json(submitted.directory.stop_file)
    saved = submitted.times("stopped")[0] - began
    sys.stdout.write(f"scancel: checkpoint after {saved:.1f} s, everything gone after {gone:.1f} s\n")
    assert submitted.cluster.job(submitted.job)["Restarts"] == "0"
