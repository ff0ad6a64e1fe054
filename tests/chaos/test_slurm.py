"""Jobs of Slurm: nodes, the command, daemons and the controller are lost, and Slurm itself ends a job."""

import threading
import time

import psutil
import pytest
from command_line import wait_until
from faults import Hold, assert_bit_equal, recoveries, steps_repeated
from runs import make_config
from slurm_cluster import SlurmCluster
from slurm_jobs import ENDED, Submit, Submitted, TrainedHere
from table import Table

from rampline.files import read_json
from rampline.jobs.slurm import Slurm
from rampline.record.attempts import read_workers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def trains_again(submitted: Submitted, hit: float) -> tuple[str, str]:
    """How many seconds after the hit the next attempt trains, and how many steps it does again, for the table."""
    started = next(at for at in submitted.times("started") if at > hit)
    return f"{started - hit:.1f}", str(steps_repeated(submitted.directory.read_events(), hit))


def lose_the_node_of(role: str, submitted: Submitted, hold: Hold) -> tuple[str, float]:
    """Once the role stands still; the node, and when that was."""
    hold.await_stop()
    lost, at = submitted.node_of(role), time.time()
    submitted.cluster.power_off(lost)
    hold.forget()
    return lost, at


def test_nodes_are_lost(submit: Submit, held: str, trained_here: TrainedHere, table: Table) -> None:
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
    assert max(cost.detected_after for cost in costs) < 15
    assert max(cost.resumed_after for cost in costs) < 45
    assert_bit_equal(submitted.directory, trained_here(submitted))
    case = "Slurm: two nodes powered off, one after the other; one spare, elastic, `exact`"
    table.add(case, "mid-epoch", costs, "2 → 2 → 1 workers, weights bit-equal")


def test_a_job_is_preempted(submit: Submit, unhurried: str, trained_here: TrainedHere, table: Table) -> None:
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

    submitted.go()
    assert cluster.await_state(submitted.job, *ENDED, seconds=180) == "COMPLETED", submitted.printed
    assert cluster.job(submitted.job)["Restarts"] == "1"
    assert saved < 2
    assert runs < 20
    assert_bit_equal(submitted.directory, trained_here(submitted))
    cost = f"{saved:.1f} (saved)", *trains_again(submitted, began)
    holds = f"the job runs again after {runs:.1f} s; weights bit-equal"
    table.add_row("Slurm: job preempted", "mid-epoch", "1", *cost, holds)


def test_the_time_limit_comes_near(submit: Submit, unhurried: str, trained_here: TrainedHere, table: Table) -> None:
    """A minute before it, or up to two: as often as it takes to the end."""
    # It takes 155 s and more, and the stop comes 90 to 120 s after the start of the job.
    submitted = submit(unhurried, "--set", "epochs=100", "--", "--time=3")
    wait_until(lambda: len(submitted.times("stopped")) > 0, 240)
    submitted.go()
    state = submitted.cluster.await_state(submitted.job, *ENDED, seconds=540)
    assert state == "COMPLETED", submitted.printed
    stops = submitted.times("stopped")
    assert len(stops) == len(submitted.times("started")) - 1
    assert_bit_equal(submitted.directory, trained_here(submitted))
    cost = trains_again(submitted, stops[0])
    table.add_row("Slurm: time limit", "mid-epoch", str(len(stops)), "-", *cost, "weights bit-equal")


@pytest.mark.parametrize("spares", ["0", "1"])
def test_the_first_node_is_lost(
    spares: str, submit: Submit, held: str, trained_here: TrainedHere, table: Table
) -> None:
    """With it the command of the job: Slurm queues the job again, or another node does, once credentials run out."""
    submitted = submit(held, "--spares", spares)
    hold = Hold(submitted.directory, "worker-1", step=20)
    hold.await_stop()
    # Not always that of worker 0: with a spare, the workers are on the nodes that are ready first. Two that the command
    # does not share its node with would go on without it, to the end, were they let go before.
    lost, hit = submitted.cluster.job(submitted.job)["BatchHost"], time.time()
    submitted.cluster.power_off(lost)
    wait_until(lambda: submitted.cluster.job(submitted.job)["Restarts"] != "0", 240)
    queued = time.time() - hit
    hold.let_go()
    if spares == "1":  # the job wants three nodes, as before
        submitted.cluster.start(lost)
    wait_until(lambda: len(submitted.times("started")) == 2, 200)
    assert submitted.cluster.job(submitted.job)["Restarts"] == "1"
    assert submitted.cluster.await_state(submitted.job, *ENDED) == "COMPLETED", submitted.printed
    assert_bit_equal(submitted.directory, trained_here(submitted))
    case = f"Slurm: first node powered off, and the command with it; {'one' if spares == '1' else 'no'} spare"
    cost = f"{queued:.1f} (queued again)", *trains_again(submitted, hit)
    table.add_row(case, "mid-epoch", "1", *cost, "weights bit-equal")


def test_without_a_spare_the_job_is_queued_again_and_cancelled_it_is_over(
    submit: Submit, unhurried: str, table: Table
) -> None:
    submitted = submit(unhurried)
    hold = Hold(submitted.directory, "worker-1", step=20)
    lost, hit = lose_the_node_of("worker-1", submitted, hold)
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
    assert "saved" in read_json(submitted.directory.stop_file)
    assert saved < 2
    assert submitted.cluster.job(submitted.job)["Restarts"] == "1"
    costs = recoveries(submitted.directory, [hit])
    table.add("Slurm: node powered off; no spare", "mid-epoch", costs, "queued again, on another node")
    ended = f"{saved:.1f} (saved)", f"{gone:.1f} (all gone)"
    table.add_row("Slurm: `scancel`", "mid-epoch", "1", *ended, "-", "not queued again")


def test_slurmd_dies_and_its_steps_do_not(
    submit: Submit, unhurried: str, trained_here: TrainedHere, table: Table
) -> None:
    """Slurm queues the job again, and can end nothing on that node."""
    submitted = submit(unhurried)
    submitted.await_epochs(2)
    node, hit = submitted.node_of("worker-1"), time.time()
    submitted.cluster.daemons[node].kill()
    submitted.cluster.daemons.pop(node).wait()
    wait_until(lambda: submitted.cluster.job(submitted.job)["Restarts"] == "1", 60)
    queued = time.time() - hit
    submitted.cluster.await_state(submitted.job, "PENDING")
    assert submitted.cluster.processes_on(node)
    gone = wait_until(lambda: submitted.cluster.processes_on(node) == [], 90)
    submitted.go()
    assert submitted.cluster.await_state(submitted.job, *ENDED, seconds=300) == "COMPLETED", submitted.printed
    assert node not in [role["host"] for role in read_json(submitted.directory.roles_file)["roles"]]
    assert_bit_equal(submitted.directory, trained_here(submitted))
    cost = f"{queued:.1f} (queued again)", *trains_again(submitted, hit)
    holds = f"its node is empty {gone:.0f} s after that; weights bit-equal"
    table.add_row("Slurm: `slurmd` killed, its steps are not", "mid-epoch", "1", *cost, holds)


def test_the_command_of_a_job_is_killed(
    submit: Submit, unhurried: str, trained_here: TrainedHere, table: Table
) -> None:
    submitted = submit(unhurried)
    submitted.await_epochs(2)
    processes = map(psutil.Process, submitted.cluster.processes_on())
    (command,) = (process for process in processes if "--launcher" in process.cmdline())
    command.kill()
    gone = wait_until(lambda: submitted.cluster.processes_on() == [], 60)
    assert submitted.cluster.await_state(submitted.job, *ENDED) == "FAILED"
    submitted.go()
    again = submitted.cluster.ask("sbatch", "--parsable", str(submitted.directory.path.parent / "job.sh"))
    assert submitted.cluster.await_state(again, *ENDED, seconds=180) == "COMPLETED", submitted.printed
    assert_bit_equal(submitted.directory, trained_here(submitted))
    row = ("Slurm: kill -9 of the command, then `sbatch`", "mid-epoch", "1", "-", f"{gone:.1f} (all gone)", "-")
    table.add_row(*row, "weights bit-equal")


def test_a_controller_that_is_started_again_is_waited_for(
    slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
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
    assert Slurm().room(config) == 2
    given_up = f"{patience:.0f} (`squeue` gives up)"
    table.add_row("Slurm: controller ended, and started again", "placing", "1", given_up, "-", "-", "waited for")
