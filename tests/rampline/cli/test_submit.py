"""Studies that run as jobs of Slurm: on a controller and three nodes that are processes of this machine.

The faults are in tests/chaos/test_slurm.py.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import RAMPLINE, Rampline, environment_with, wait_until
from faults import assert_bit_equal
from slurm_cluster import SlurmCluster
from slurm_jobs import ENDED, Submit, TrainedHere

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = ("digits", "--only", "multi-worker", "--set", "parity.steps=0", "--set", "explain.steps=0")
SMALL += ("--set", "data.limit=20")


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
