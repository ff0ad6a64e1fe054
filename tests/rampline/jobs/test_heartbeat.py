"""A role's sign of life, and who looks for it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from command_line import wait_until

from rampline.jobs.heartbeat import Heartbeat, HeartbeatWatch

BEAT = """
import sys, time
from pathlib import Path
from rampline.jobs.heartbeat import Heartbeat
Heartbeat(Path(sys.argv[1]), timeout_seconds=2, on_overdue=print).start()
time.sleep(60)
"""
WATCHED = """
import sys, threading, time
from pathlib import Path
from rampline.jobs import ray_roles
from rampline.jobs.heartbeat import Heartbeat, HeartbeatWatch
ray_roles.SILENT_SECONDS = 4
host = ray_roles.RayHost(node=None, actor=None, follower=threading.current_thread())
host.hear({})
watch = HeartbeatWatch(Path(sys.argv[1]))
heartbeat = Heartbeat(Path(sys.argv[1]), timeout_seconds=4, on_overdue=lambda *told: print("overdue", *told))
heartbeat.start()
for _ in range(2):
    heartbeat.advance("train")  # one call that took no time, and one of a second and the pause
print("begun", flush=True)
silent, is_lost = 0.0, False
for _ in range(20):
    silent = max(silent, watch.silent_seconds())
    is_lost = is_lost or host.is_silent
    time.sleep(0.05)
heartbeat.advance("train")
print(silent < 4, not is_lost, heartbeat._longest["train"] < 4)
"""
# A job that is waited for, and the agent of a node of Slurm, which is stopped with the process that has started it.
WAITING = """
import subprocess, sys, threading, time
from pathlib import Path
from types import SimpleNamespace
from rampline.jobs.job import Job, JobFailed, follow
from rampline.jobs.slurm import NodeAgent
agent_code = "from rampline.jobs import node_agent; node_agent.LONGEST_SILENCE_SECONDS = 4; node_agent.main()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
agent = NodeAgent(node="n", address="n", step=subprocess.Popen([sys.executable, "-c", agent_code, "1"], **pipes))
agent.listen()
while not agent.ports:
    time.sleep(0.05)
role, failures = SimpleNamespace(exit_status=None, label="role", log=Path("log")), []
def wait():
    try:
        follow([role], Job(function="", folder=Path("nowhere"), timeout_seconds=5, silence_seconds=4))
    except JobFailed as failure:
        failures.append(failure)
waiting = threading.Thread(target=wait)
waiting.start()
print("begun", flush=True)
is_lost = False
for _ in range(20):
    is_lost = is_lost or agent.is_lost(4)
    time.sleep(0.05)
role.exit_status = 0
waiting.join()
print(not failures, not is_lost, agent.step.poll() is None)
agent.close()
sys.exit(agent.step.wait(10))
"""


def test_a_frozen_process_is_silent_and_one_that_goes_on_is_not(tmp_path: Path) -> None:
    watch = HeartbeatWatch(tmp_path / "chief-0")
    assert watch.silent_seconds() == 0.0
    process = subprocess.Popen([sys.executable, "-c", BEAT, str(tmp_path / "chief-0")])
    try:
        wait_until((tmp_path / "chief-0").is_file, 20)
        time.sleep(1)
        assert watch.silent_seconds() < 0.9
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: watch.silent_seconds() > 1.5, 20)
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: watch.silent_seconds() < 0.9, 20)
    finally:
        process.kill()
        process.wait()


def test_a_pause_of_watched_and_watcher_together_is_no_silence_and_no_part_of_a_call_or_a_job(tmp_path: Path) -> None:
    """Of a role and who looks for it, and of a launcher and its agent: each stopped with all that it has started."""
    processes = list[subprocess.Popen[str]]()
    try:
        for arguments in ((WATCHED, str(tmp_path / "chief-0")), (WAITING,)):
            command = [sys.executable, "-c", *arguments]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            processes.append(process)
            assert process.stdout
            assert process.stdout.readline() == "begun\n"
            time.sleep(0.2)
            os.killpg(process.pid, signal.SIGSTOP)
        time.sleep(6)
    finally:
        for process in processes:
            os.killpg(process.pid, signal.SIGCONT)
    assert [process.communicate()[0] for process in processes] == ["True True True\n"] * 2
    assert [process.returncode for process in processes] == [0, 0]


def test_what_an_earlier_process_left_is_no_sign_of_life(tmp_path: Path) -> None:
    (tmp_path / "chief-0").write_text("000000000007 train\n")
    assert HeartbeatWatch(tmp_path / "chief-0").silent_seconds() == 0.0
    assert not (tmp_path / "chief-0").exists()


def test_a_call_that_does_not_come_back_is_told_once_it_is_far_longer_than_those_before(tmp_path: Path) -> None:
    overdue, told = threading.Event(), list[tuple[str, float]]()

    def tell(call: str, seconds: float) -> None:
        told.append((call, seconds))
        overdue.set()

    heartbeat = Heartbeat(tmp_path / "chief-0", timeout_seconds=1, on_overdue=tell)
    heartbeat.start()
    heartbeat.advance("train")
    time.sleep(1.5)  # the first call of its kind: it compiles
    for _ in range(3):
        heartbeat.advance("train")
        time.sleep(0.1)
    assert told == []
    assert (tmp_path / "chief-0").read_text().split()[1] == "train"
    assert overdue.wait(5)
    assert told[0][0] == "train"
    assert 1 < told[0][1] < 3


def test_calls_that_always_take_long_are_no_freeze(tmp_path: Path) -> None:
    heartbeat = Heartbeat(tmp_path / "chief-0", timeout_seconds=0.2, on_overdue=lambda call, seconds: None)
    for _ in range(3):
        heartbeat.advance("train")
        time.sleep(0.5)
    assert not heartbeat.is_overdue


def test_a_clock_that_jumps_is_not_asked(tmp_path: Path, monkeypatch) -> None:
    watch = HeartbeatWatch(tmp_path / "chief-0")
    (tmp_path / "chief-0").write_text("1")
    assert watch.silent_seconds() < 1
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86400)
    os.utime(tmp_path / "chief-0", (0, 0))
    assert watch.silent_seconds() < 1
