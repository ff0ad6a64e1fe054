"""Two hosts, each a network namespace, and the link between them: the bed itself, then runs on it."""

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from faults import assert_bit_equal
from hosts import NAME_PREFIX, Host, Hosts, make_hosts, why_not
from table import Table
from two_hosts import TwoHostRun, start_on

from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

BOTH_STOP_SECONDS = 30
LONG_CUT_SECONDS = 45
# TCP tries again after pauses that double: this long after a cut of 3 s the hosts must talk again.
SHORT_CUT_STALL_SECONDS = 20
PORT = 5000
ECHO = f"""
import socket, threading
def answer(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
server = socket.create_server(("0.0.0.0", {PORT}))
print(flush=True)
while True:
    threading.Thread(target=answer, args=server.accept()[:1], daemon=True).start()
"""
ASK = f"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], {PORT}), timeout=float(sys.argv[2]))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(5):
    started = time.monotonic()
    connection.sendall(b"x")
    connection.recv(1)
    print(time.monotonic() - started)
"""


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Two hosts with nothing on them."""
    with make_hosts() as made:
        yield made


def ask(hosts: Hosts, timeout_seconds: float = 5) -> list[float]:
    """Five round trips from the first host to the echo on the second, seconds each; empty if it does not answer."""
    first, second = hosts.hosts
    asked = first.run([sys.executable, "-c", ASK, second.address, str(timeout_seconds)])
    assert asked.returncode == 0 or "TimeoutError" in asked.stderr, asked.stderr
    return [float(line) for line in asked.stdout.split()]


@pytest.fixture
def echo(hosts: Hosts) -> Iterator[None]:
    """An echo on the second host."""
    with hosts.hosts[1].start([sys.executable, "-c", ECHO], stdout=subprocess.PIPE) as server:
        assert server.stdout
        server.stdout.readline()
        yield
        server.kill()


def test_hosts_reach_each_other_and_nothing_else(hosts: Hosts, echo: None) -> None:
    assert min(ask(hosts)) < 0.05
    # An address of the range for examples, which the machine itself may route somewhere.
    outside = f"import socket; socket.create_connection(('192.0.2.1', {PORT}), timeout=5)"
    assert "Network is unreachable" in hosts.hosts[0].run([sys.executable, "-c", outside]).stderr


def test_a_cut_is_silent_and_heals(hosts: Hosts, echo: None) -> None:
    hosts.cut()
    started = time.monotonic()
    assert ask(hosts, timeout_seconds=2) == []
    # Not refused and not unreachable: it waited to its own end.
    assert time.monotonic() - started >= 2
    hosts.heal()
    assert len(ask(hosts)) == 5


def test_delay_and_loss_are_as_asked(hosts: Hosts, echo: None) -> None:
    hosts.degrade(delay_ms=50)
    assert 0.1 <= min(ask(hosts)) < 0.12
    hosts.degrade(loss_percent=20)
    # The shortest pause before TCP sends a lost packet again is 0.2 s.
    assert any(seconds >= 0.2 for _ in range(5) for seconds in ask(hosts, timeout_seconds=20))


def test_nothing_is_left_of_hosts_that_fail() -> None:
    made: list[tuple[Host, subprocess.Popen]] = []

    def fail() -> None:
        with make_hosts() as hosts:
            made.extend((host, host.start(["sleep", "600"], start_new_session=True)) for host in hosts)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(made) == 2
    for host, process in made:
        assert process.wait(timeout=5) == -signal.SIGKILL
        assert not Path("/run/netns", host.namespace).exists()


def test_what_a_killed_test_left_is_removed() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = f"{NAME_PREFIX}{ended.pid}-0"
    subprocess.run(["ip", "netns", "add", name], check=True)
    left = subprocess.Popen(["ip", "netns", "exec", name, "sleep", "600"])
    while psutil.Process(left.pid).name() != "sleep":
        time.sleep(0.01)
    with make_hosts():
        assert not Path("/run/netns", name).exists()
        assert left.wait(timeout=5) == -signal.SIGKILL


@pytest.fixture
def run_on(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[[RunDirectory], TwoHostRun]]:
    """`run_on(directory)` starts the run on the two hosts and waits until it has trained for two epochs."""
    started = []

    def start(directory: RunDirectory, epochs: int = 2) -> TwoHostRun:
        context = start_on(hosts, directory, tmp_path / "commands")
        started.append(context)
        run = context.__enter__()
        run.wait_for(lambda: len(run.events("epoch")) >= epochs, 150, f"{epochs} epochs")
        return run

    yield start
    for context in started:
        context.__exit__(None, None, None)


def stall_seconds(run: TwoHostRun, since: float, until: float) -> float:
    """The longest time between two calls of training after `since`."""
    times = [since, *(e["time"] for e in run.events("progress", since=since) if e["time"] < until)]
    return max(b - a for a, b in itertools.pairwise(times))


@pytest.mark.slow
def test_two_hosts_train_together(make_run, run_on, uninterrupted) -> None:
    run = run_on(make_run("multi_worker"))
    run.wait_to_end()
    assert run.attempts() == 1
    assert_bit_equal(run.directory, uninterrupted("multi_worker"))


@pytest.mark.slow
def test_both_sides_stop_after_a_long_cut_and_go_on_when_it_heals(make_run, run_on, uninterrupted, table) -> None:
    run = run_on(make_run("multi_worker"))
    before = {host: run.role_pids(host) for host in run.hosts}
    assert all(before.values())
    run.hosts.cut()
    cut_at = time.time()
    left: dict[str, float] = {}

    def all_left() -> bool:
        for host, pids in before.items():
            if host.address not in left and not pids & run.role_pids(host):
                left[host.address] = time.time() - cut_at
        return len(left) == len(before)

    run.wait_for(all_left, BOTH_STOP_SECONDS, "both sides have stopped")
    time.sleep(max(0.0, cut_at + LONG_CUT_SECONDS - time.time()))
    assert not run.events("progress", since=cut_at + BOTH_STOP_SECONDS)
    run.hosts.heal()
    healed_at = time.time()
    run.wait_to_end()
    assert run.attempts() >= 2
    assert_bit_equal(run.directory, uninterrupted("multi_worker"))
    resumed = run.events("progress", since=healed_at)[0]["time"] - cut_at
    stopped = " and ".join(f"{seconds:.1f}" for seconds in left.values())
    row = (f"link cut for {LONG_CUT_SECONDS} s, multi_worker", "mid-epoch", "1", f"{stopped} (both stopped)")
    table.add_row(*row, f"{resumed:.1f}", "-", "weights bit-equal")


@pytest.mark.slow
def test_a_short_cut_is_survived(make_run, run_on, uninterrupted, table: Table) -> None:
    run = run_on(make_run("multi_worker"))
    run.hosts.cut()
    cut_at = time.time()
    time.sleep(3)
    run.hosts.heal()
    run.wait_to_end()
    assert run.attempts() <= 2
    assert_bit_equal(run.directory, uninterrupted("multi_worker"))
    stall = stall_seconds(run, cut_at, cut_at + 60)
    restarts = run.attempts() - 1
    if not restarts:
        assert 2.5 < stall < SHORT_CUT_STALL_SECONDS
    holds = f"weights bit-equal, {restarts} restarts"
    table.add_row("link cut for 3 s, multi_worker", "mid-epoch", "1", "-", f"{stall:.1f}", "-", holds)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bad_link_makes_the_same_training(make_run, run_on, tmp_path: Path, table: Table) -> None:
    short = {"epochs": 1, "checkpoint_every_steps": 0}
    reference = RunDirectory(make_run("multi_worker", **short).path.rename(tmp_path / "reference"))
    supervise(reference, on_event=lambda event: None, log=print)
    run = run_on(make_run("multi_worker", **short), epochs=0)
    run.wait_for(lambda: run.events("started"), 150, "the start of training")
    run.hosts.degrade(delay_ms=50, loss_percent=1)
    degraded_at = time.time()
    run.wait_to_end(seconds=400)
    assert run.attempts() == 1
    assert_bit_equal(run.directory, reference)
    stall = stall_seconds(run, degraded_at, time.time())
    table.add_row("50 ms each way and 1 % loss, multi_worker", "always", "1", "-", f"{stall:.1f}", "-", "bit-equal")


@pytest.mark.slow
def test_parameter_server_goes_on_without_a_host_that_is_cut_off(make_run, run_on, table: Table) -> None:
    run = run_on(make_run("parameter_server", epochs=40))
    run.hosts.cut()
    cut_at = time.time()
    settled = cut_at + 1
    run.wait_for(lambda: run.events("progress", since=settled), BOTH_STOP_SECONDS, "training without worker 1")
    resumed = run.events("progress", since=settled)[0]["time"] - cut_at
    time.sleep(max(0.0, cut_at + LONG_CUT_SECONDS - time.time()))
    run.hosts.heal()
    run.wait_to_end()
    assert run.attempts() == 1
    row = (f"link to a worker cut for {LONG_CUT_SECONDS} s, parameter_server", "mid-epoch", "1", f"{resumed:.1f}")
    table.add_row(*row, f"{resumed:.1f}", "0", "completes, the other worker goes on")
