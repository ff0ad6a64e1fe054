"""Roles that freeze, and runs that are asked to stop."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from command_line import as_terminal_job, wait_until
from faults import Faults, assert_bit_equal, examples_seen, run_with
from processes import processes_of
from table import Table

from rampline.files import read_json
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory

HEARTBEAT_TIMEOUT_SECONDS = 15  # as the runs of this folder are configured
LEAVE_SECONDS = 20


FREEZES = {
    "multi_worker": ("worker-0", "worker-1"),
    "parameter_server": ("chief-0", "worker-1", "ps-0"),
    "single": ("chief-0",),
}


@pytest.mark.parametrize(("strategy", "role"), [(s, role) for s, roles in FREEZES.items() for role in roles])
def test_a_frozen_role_is_found_and_replaced(strategy: str, role: str, make_run, uninterrupted, table: Table) -> None:
    directory: RunDirectory = make_run(strategy)
    costs = run_with(Faults(directory, role, "mid-epoch", number=signal.SIGSTOP))
    assert costs[0].detected_after <= HEARTBEAT_TIMEOUT_SECONDS + 5
    holds = "completes"
    if strategy != "parameter_server":
        assert_bit_equal(directory, uninterrupted(strategy))
        holds = "weights bit-equal"
    table.add(f"SIGSTOP of {role}, {strategy}", "mid-epoch", costs, holds)


@pytest.mark.parametrize("strategy", ["single", "parameter_server"])
def test_a_pause_of_all_processes_costs_nothing_but_the_time(
    strategy: str, make_run, uninterrupted, table: Table
) -> None:
    """TensorFlow's coordination of `multi_worker` has a limit of its own, of about 10 s."""
    directory: RunDirectory = make_run(strategy)
    launcher = launch(directory)
    wait_for_step(directory, epoch=5)
    processes = [process := psutil.Process(launcher.pid), *process.children(recursive=True)]
    for process in processes:
        process.suspend()
    time.sleep(HEARTBEAT_TIMEOUT_SECONDS + 5)
    for process in processes:
        process.resume()
    assert launcher.wait(120) == 0
    assert len(directory.read_events("started")) == 1
    if strategy != "parameter_server":
        assert_bit_equal(directory, uninterrupted(strategy))
    holds = "completes" if strategy == "parameter_server" else "weights bit-equal"
    table.add_row(
        f"pause of all processes for 20 s, {strategy}", "mid-epoch", "1", "-", "-", "0", f"{holds}, 0 restarts"
    )


LAUNCH = """
import sys
from pathlib import Path
from rampline.jobs.lock import hold_run
from rampline.jobs.supervisor import supervise
from rampline.errors import RamplineError
from rampline.record.run_directory import RunDirectory
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
directory = RunDirectory(Path(sys.argv[1]))
try:
    with hold_run(directory):
        supervise(directory, on_event=lambda event: None, log=print)
except RamplineError as error:
    print(error)
    sys.exit(error.exit_status)
"""


def launch(directory: RunDirectory) -> subprocess.Popen[bytes]:
    """A launcher as a process of its own."""
    return subprocess.Popen([sys.executable, "-c", LAUNCH, str(directory.path)], preexec_fn=as_terminal_job)


def wait_for_step(directory: RunDirectory, epoch: int) -> None:
    wait_until(lambda: any(e["epoch"] >= epoch for e in directory.read_events("progress")), 120, every=0.02)


def pid_of(directory: RunDirectory, role: str) -> int:
    roles = read_json(directory.roles_file)["roles"]
    return next(r["pid"] for r in roles if f"{r['role']}-{r['index']}" == role)


@pytest.mark.parametrize("target", ["launcher", "worker-0", "worker-1"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_stopped_run_saves_and_goes_on_later(
    target: str, number: signal.Signals, make_run, uninterrupted, table: Table
) -> None:
    _stop_and_go_on(make_run, "multi_worker", target, number, uninterrupted, table)


@pytest.mark.parametrize("strategy", ["single", "mirrored"])
def test_a_stopped_run_of_one_process(strategy: str, make_run, uninterrupted, table: Table) -> None:
    _stop_and_go_on(make_run, strategy, "launcher", signal.SIGTERM, uninterrupted, table)


@pytest.mark.parametrize("target", ["launcher", "chief-0", "worker-1", "ps-0"])
def test_a_stopped_parameter_server_run(target: str, make_run, uninterrupted, table: Table) -> None:
    _stop_and_go_on(make_run, "parameter_server", target, signal.SIGTERM, None, table)


def _stop_and_go_on(make_run, strategy: str, target: str, number, uninterrupted, table: Table) -> None:
    directory = make_run(strategy, checkpoint_every_steps=1000)  # so that only a stop saves where it is
    launcher = launch(directory)
    wait_for_step(directory, epoch=5)
    asked = time.monotonic()
    os.kill(launcher.pid if target == "launcher" else pid_of(directory, target), number)
    status = launcher.wait(LEAVE_SECONDS + 10)
    seconds = time.monotonic() - asked
    assert seconds <= LEAVE_SECONDS
    interrupted = target == "launcher" and number == signal.SIGINT
    # Python itself ends by the signal after a KeyboardInterrupt that nobody catches.
    assert status == (-signal.SIGINT if interrupted else 143)
    assert processes_of(directory.path) == []
    assert not directory.is_complete
    stopped = [e for e in directory.read_events() if e["event"] == "stopped"]
    assert len(stopped) == 1
    assert stopped[0]["step"] % 1000 != 0, "a step that no checkpoint was due at"
    supervise(directory, on_event=lambda event: None, log=print)
    going_on = [e for e in directory.read_events() if e["event"] == "started"][-1]
    assert going_on["first_step"] == stopped[0]["step"]
    holds = "completes"
    if uninterrupted:
        whole = uninterrupted(strategy)
        assert_bit_equal(directory, whole)
        assert examples_seen(directory) == examples_seen(whole)
        holds = "weights bit-equal, same examples"
    name = f"SIG{number.name.removeprefix('SIG')} to {target}, {strategy}, then started again"
    table.add_row(name, "mid-epoch", "1", f"left after {seconds:.1f}", "-", "0", holds)


def test_a_killed_launcher_leaves_no_role(make_run, uninterrupted, table: Table) -> None:
    directory = make_run("multi_worker")
    launcher = launch(directory)
    wait_for_step(directory, epoch=5)
    launcher.kill()
    launcher.wait()
    seconds = wait_until(lambda: not processes_of(directory.path), 15, every=0.02)
    supervise(directory, on_event=lambda event: None, log=print)
    assert_bit_equal(directory, uninterrupted("multi_worker"))
    table.add_row(
        "kill -9 of the launcher, multi_worker, then started again",
        "mid-epoch",
        "1",
        f"roles gone after {seconds:.1f}",
        "-",
        "-",
        "weights bit-equal",
    )


def test_a_second_launcher_is_turned_away(make_run) -> None:
    directory = make_run("single")
    launcher = launch(directory)
    wait_for_step(directory, epoch=1)
    command = [sys.executable, "-c", LAUNCH, str(directory.path)]
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    assert second.returncode == 1
    assert f"is in use by process {launcher.pid}" in second.stdout
    assert launcher.wait(120) == 0


def test_a_second_ctrl_c_ends_at_once(make_run) -> None:
    directory = make_run("multi_worker")
    launcher = launch(directory)
    wait_for_step(directory, epoch=2)
    # A worker that cannot answer keeps the others from agreeing to stop.
    os.kill(pid_of(directory, "worker-1"), signal.SIGSTOP)
    os.kill(launcher.pid, signal.SIGINT)
    time.sleep(2)
    assert launcher.poll() is None
    os.kill(launcher.pid, signal.SIGINT)
    again = time.monotonic()
    launcher.wait(10)
    assert time.monotonic() - again < 3
    assert processes_of(directory.path) == []
