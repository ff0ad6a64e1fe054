"""One attempt of a run: where its roles listen, and that they are gone whatever ends it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from processes import processes_of
from runs import make_config

from rampline.config import ClusterConfig
from rampline.devices import free_ports
from rampline.errors import Preempted
from rampline.files import read_json
from rampline.jobs.local import Local
from rampline.jobs.supervisor import supervise
from rampline.jobs.tf_config import Task
from rampline.jobs.waiting import wait_until
from rampline.record.checkpoints import last_checkpoint
from rampline.record.run_directory import RunDirectory

# A model function may need the network, so the roles have none of their own.
IN_SHARED_NETWORK = "small_models:with_batch_norm"
LAUNCH = """
import signal, sys
from pathlib import Path
from rampline.jobs.fork_server import fork_server
from rampline.jobs.supervisor import supervise
from rampline.record.run_directory import RunDirectory
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with fork_server():
    supervise(RunDirectory(Path(sys.argv[1])), on_event=lambda event: None, log=print)
"""


def wait_for_roles(directory: RunDirectory, event: str = "epoch") -> dict[str, int]:
    """Process ids by role once the run has told `event`."""
    assert wait_until(lambda: bool(directory.read_events(event)), 150)
    roles = read_json(directory.roles_file)["roles"]
    return {f"{role['role']}-{role['index']}": role["pid"] for role in roles}


def test_roles_listen_on_loopback_at_addresses_in_no_command_line_and_an_interrupt_ends_all(make_run) -> None:
    """Every user of the machine can read those."""
    config = make_config("parameter_server", model=IN_SHARED_NETWORK, workers=2, parameter_servers=1)
    directory, ports, commands, hosts = make_run(config, epochs=2000), list[str](), list[str](), set[str]()

    def look(event: dict) -> None:
        if event["event"] == "epoch":
            ports.extend(role["address"].rpartition(":")[2] for role in read_json(directory.roles_file)["roles"])
            children = {child.pid for child in psutil.Process().children(recursive=True)}
            for pid in children | set(processes_of(directory.path)):
                commands.append(" ".join(psutil.Process(pid).cmdline()))
            hosts.update(listening_on(directory))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        supervise(directory, on_event=look, log=print)
    assert hosts == {"::ffff:127.0.0.1"}
    assert len(ports) == 4
    assert len([command for command in commands if "rampline.worker" in command]) >= 4
    assert [command for command in commands for port in ports if f":{port}" in command] == []


def test_sigterm_to_the_launcher_and_its_roles_saves_a_checkpoint(make_run) -> None:
    """As Slurm, systemd and `ray job stop` end a job: then the launcher asks a role that is stopping already."""
    directory = make_run(make_config("single", model="small_models:slow"), epochs=2000, steps_per_call=16)
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCH, str(directory.path)])
    chief = wait_for_roles(directory, "progress")["chief-0"]
    for number in range(40):
        with contextlib.suppress(ProcessLookupError):
            os.kill(chief, signal.SIGTERM)
        if number == 10:
            launcher.terminate()
        time.sleep(0.05)
    # 143, or 1 where the role had left before the launcher was asked.
    assert launcher.wait(60)
    assert "stopped" in [event["event"] for event in directory.read_events()]
    assert "saved" in read_json(directory.stop_file)
    assert last_checkpoint(directory.checkpoints)


@pytest.mark.long
def test_of_workers_that_stop_the_chief_leaves_first_because_it_may_still_receive_their_last_sum(make_run) -> None:
    config = make_config("multi_worker", workers=2, model="small_models:with_all_state")
    directory = make_run(config, epochs=2000)
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCH, str(directory.path)])
    other = psutil.Process(wait_for_roles(directory)["worker-1"])
    launcher.terminate()
    while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.001)
    gone_at = time.time()
    assert launcher.wait(60)
    assert read_json(directory.stop_file)["at"] < gone_at


def test_a_status_of_143_alone_does_not_say_that_a_checkpoint_was_saved(make_run) -> None:
    directory = make_run(make_config("single", model="small_models:ended_by_sigterm"))
    with pytest.raises(Preempted, match=r"^chief 0 was asked to stop before it could save a checkpoint$"):
        supervise(directory, on_event=lambda event: None, log=print)


@pytest.mark.long
def test_roles_on_several_addresses_of_the_loopback_interface_meet(make_run) -> None:
    config = make_config("multi_worker", model=IN_SHARED_NETWORK, workers=2, max_restarts=0)
    directory = make_run(config, epochs=1)
    cluster = {"worker": tuple(f"127.0.0.{i}:{port}" for i, port in enumerate(free_ports(2), start=2))}
    tasks, hosts = [Task(cluster=cluster, role="worker", index=i) for i in range(2)], set[str]()

    def look(event: dict) -> None:
        if event["event"] == "started":
            hosts.update(listening_on(directory))

    supervise(directory, on_event=look, log=print, launcher=Local(tasks))
    assert read_json(directory.result_file)["epochs"] == 1
    assert hosts == {"::ffff:127.0.0.2", "::ffff:127.0.0.3"}


def listening_on(directory: RunDirectory) -> set[str]:
    """Addresses that the roles have sockets at which take connections."""
    roles = [psutil.Process(role["pid"]) for role in read_json(directory.roles_file)["roles"]]
    return {c.laddr.ip for role in roles for c in role.net_connections() if c.status == psutil.CONN_LISTEN}


@pytest.mark.long
def test_a_rendezvous_that_fails_ends_in_time(make_run) -> None:
    cluster = ClusterConfig(workers=2, rendezvous_timeout_seconds=5, max_restarts=0)
    directory = make_run(make_config("multi_worker", workers=2), cluster=cluster)
    task = {"cluster": {"worker": ["127.0.0.1:45991", "127.0.0.1:45992"]}, "task": {"type": "worker", "index": 1}}
    command = [str(Path(sys.executable).with_name("rampline")), "worker", str(directory.path)]
    environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
    alone = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert alone.returncode == 1
    assert "worker 1 did not find the other roles in time" in alone.stderr
