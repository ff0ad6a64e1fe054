"""Studies that run as jobs of Slurm: on a controller and three nodes that are processes of this machine."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_line import Rampline, wait_until
from faults import assert_bit_equal
from flow_runs import Flows
from runs import SUPPORT
from slurm_cluster import SlurmCluster

from rampline.config import RunConfig
from rampline.files import read_json
from rampline.jobs.supervisor import supervise
from rampline.record.attempts import read_workers
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
Undisturbed = Callable[[Submitted], RunDirectory]


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


@pytest.fixture(scope="module")
def undisturbed(forks: None, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """`undisturbed(SUBMITTED)`: the same run by processes of this machine, that nothing has happened to."""
    trained: dict[RunConfig, RunDirectory] = {}

    def train(submitted: Submitted) -> RunDirectory:
        # A sum of two has one order: that of `exact`, too.
        changes = {"launcher": "local", "min_workers": None, "sum": "fast"}
        config = submitted.directory.read_config()
        config = dataclasses.replace(config, cluster=dataclasses.replace(config.cluster, **changes))
        if config not in trained:
            directory = trained[config] = RunDirectory(tmp_path_factory.mktemp("undisturbed") / "run")
            directory.create(config, submitted.directory.read_identity())
            supervise(directory, on_event=lambda event: None, log=lambda line: None)
        return trained[config]

    return train


def test_a_study_is_a_job_and_trains_as_on_one_machine(submit: Submit, undisturbed: Undisturbed) -> None:
    submitted = submit(*SMALL, "--set", "epochs=2", "--", "--partition=low")
    script = (submitted.directory.path.parent / "job.sh").read_text()
    assert "\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --cpus-per-task=2\n" in script
    assert "\n#SBATCH --partition=low\n" in script
    here = submitted.cluster.await_state(submitted.job, *ENDED)
    assert here == "COMPLETED", submitted.printed
    assert "report " in submitted.printed
    assert [submitted.node_of(f"worker-{i}") for i in (0, 1)] == ["n1", "n2"]
    assert submitted.cluster.processes_on() == []
    assert_bit_equal(submitted.directory, undisturbed(submitted))


def test_nodes_are_listed_with_what_is_free(slurm: SlurmCluster, rampline: Rampline) -> None:
    slurm.ask("sbatch", "--nodelist=n2", "--cpus-per-task=1", "-o", "/dev/null", "--wrap", "sleep 60")
    wait_until(lambda: slurm.ask("squeue", "-h", "-o", "%T") == "RUNNING", 10)
    done = rampline("nodes", "--launcher", "slurm", prefect=slurm.environment)
    assert (done.returncode, done.stderr) == (0, "")
    _, _, *rows = [line.split("  ") for line in done.stdout.splitlines() if line.strip()]
    shown = {cells[0]: cells for cells in ([cell.strip() for cell in row if cell.strip()] for row in rows)}
    assert shown["n1"] == ["n1", "idle", "2", "2", "0", "4 GiB", "low*, high"]
    assert shown["n2"] == ["n2", "mix", "2", "1", "0", "4 GiB", "low*, high"]
    assert shown["g1"][2:] == ["16", "16", "4", "4", "a100", "4 GiB", "gpu"]


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
def test_a_preempted_job_saves_is_queued_again_and_goes_on(submit: Submit, undisturbed: Undisturbed) -> None:
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
    assert_bit_equal(submitted.directory, undisturbed(submitted))


ELASTIC = ("--set", "cluster.min_workers=1", "--set", "cluster.sum=exact")


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "workers", "restarts"),
    [(["--spares", "1"], [2, 2], "0"), (ELASTIC, [2, 1], "0"), ([], [2, 2], "1")],
    ids=["a spare takes its place", "fewer workers go on", "the job is queued again"],
)
def test_a_node_dies(
    arguments: Sequence[str], workers: list[int], restarts: str, submit: Submit, undisturbed: Undisturbed
) -> None:
    submitted = submit(*LONG, *arguments)
    submitted.await_epochs(5)
    lost, began = submitted.node_of("worker-1"), time.time()
    submitted.cluster.power_off(lost)
    wait_until(lambda: len(submitted.times("started")) == 2, 90)
    trains = time.time() - began
    roles = read_json(submitted.directory.roles_file)["roles"]
    assert len(roles) == workers[1]
    assert lost not in [role["host"] for role in roles]
    assert submitted.cluster.await_state(submitted.job, *ENDED) == "COMPLETED", submitted.printed
    assert submitted.cluster.job(submitted.job)["Restarts"] == restarts
    assert read_workers(submitted.directory.attempts_file) == workers
    attempt = json.loads(submitted.directory.attempts_file.read_text().splitlines()[1])
    noticed = attempt["time"] - attempt["seconds"] + attempt["lost_after_seconds"] - began
    sys.stdout.write(f"a node lost: noticed after {noticed:.1f} s, trains again after {trains:.1f} s\n")
    assert noticed < 15
    assert trains < 45
    assert_bit_equal(submitted.directory, undisturbed(submitted))


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
