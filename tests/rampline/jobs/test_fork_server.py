"""Workers that are forks of a process with TensorFlow: they do what started ones do, and end as those do."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from command_line import wait_until
from runs import make_config

from rampline.files import read_json
from rampline.jobs import fork_server as module
from rampline.jobs.fork_server import ForkedProcess, fork_server
from rampline.jobs.job import Job
from rampline.jobs.launcher import end_roles
from rampline.jobs.local import LOCAL, LocalRole
from rampline.jobs.private_network import SHARED
from rampline.jobs.supervisor import supervise
from rampline.jobs.tf_config import ALONE


@pytest.fixture
def server(forks: None) -> psutil.Process:
    return psutil.Process(module._active[0].process.pid)


@pytest.fixture
def own_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[module._Server]:
    """One beside that of the session, to be tried to death."""
    monkeypatch.setattr(module, "_active", [])
    with fork_server():
        yield module._active[0]


def start_role(folder: Path, log: Path, **environment: str) -> LocalRole:
    job = Job(function="role", folder=folder, log=log, environment={"TF_CONFIG": "", **environment})
    return LOCAL.place_jobs([job]).start(ALONE, job)


def wait(process: ForkedProcess, seconds: float) -> int | None:
    """Its exit status, when it has ended."""
    wait_until(lambda: process.poll() is not None, seconds)
    return process.returncode


def children_of(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if child.status() != psutil.STATUS_ZOMBIE]


def test_roles_of_a_run_are_forks(make_run, server: psutil.Process) -> None:
    directory, parents, lines = make_run(make_config("multi_worker", workers=2), epochs=1), set(), []

    def on_event(event: dict) -> None:
        if event["event"] == "started":
            for role in read_json(directory.roles_file)["roles"]:
                process = psutil.Process(role["pid"])
                parents.add(process.ppid())
                lines.append([part for part in process.cmdline() if part])
                assert os.getsid(process.pid) == os.getpgid(process.pid) == process.pid

    supervise(directory, on_event=on_event, log=print)
    assert directory.is_complete
    assert parents == {server.pid}
    assert lines == [[sys.executable, "-P", "-m", "rampline.worker", str(directory.path)]] * 2
    assert children_of(server) == []
    # Printed while TensorFlow was imported, on every processor.
    assert all("InitializeLog" in (directory.logs / f"worker-{index}.log").read_text() for index in range(2))


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_signal_that_ends_one_is_its_status(number: signal.Signals, make_run, server: psutil.Process) -> None:
    directory = make_run(make_config("single"), epochs=9999)
    role = start_role(directory.path, directory.logs / "chief-0.log")
    process = role.process
    assert isinstance(process, ForkedProcess)
    assert process.poll() is None
    wait_until(lambda: os.getpgid(process.pid) == process.pid, 10, every=0.01)
    os.killpg(process.pid, number)
    assert wait(process, 60) in (-number, 143)
    end_roles([role])
    assert children_of(server) == []


def test_an_import_of_tensorflow_runs_no_operation() -> None:
    """Devices and their threads would not outlive the fork."""
    code = """
import importlib, os
from rampline.worker import OF_EVERY_WORKER
from rampline.imports import import_tensorflow
import_tensorflow()
for name in OF_EVERY_WORKER:
    importlib.import_module(name)
from tensorflow.python.eager import context
assert context.context()._context_handle is None
print(len(os.listdir("/proc/self/task")))
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert int(finished.stdout) <= 2


@pytest.mark.parametrize("change", ["TF_ENABLE_ONEDNN_OPTS", "OMP_NUM_THREADS", "PYTHONPATH"])
def test_what_tensorflow_reads_on_import_makes_a_process_of_its_own(
    change: str, tmp_path: Path, server: psutil.Process
) -> None:
    role = start_role(tmp_path / "nothing", tmp_path / "log", **{change: "1"})
    assert isinstance(role.process, subprocess.Popen)
    end_roles([role])


def test_who_has_waited_for_it_starts_workers_at_once(own_server: module._Server) -> None:
    for _ in range(2):
        module.wait_for_fork_server()
        assert "libtensorflow" in Path(f"/proc/{own_server.process.pid}/maps").read_text()


def test_it_ends_when_its_socket_is_closed_before_anybody_waited(own_server: module._Server) -> None:
    wait_until(lambda: "libtensorflow" in Path(f"/proc/{own_server.process.pid}/maps").read_text(), 60)
    own_server.requests.close()
    assert own_server.process.wait(10) == 0


def test_one_that_is_stopped_is_done_without(
    tmp_path: Path, own_server: module._Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.wait_for_fork_server()
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    os.kill(own_server.process.pid, signal.SIGSTOP)
    role = start_role(tmp_path / "nothing", tmp_path / "log")
    assert isinstance(role.process, subprocess.Popen)
    assert own_server.process.wait(10) == -signal.SIGKILL
    end_roles([role])


def test_nobody_waits_for_one_that_was_killed(own_server: module._Server) -> None:
    own_server.process.kill()
    module.wait_for_fork_server()


def test_what_ray_sets_makes_none(tmp_path: Path, server: psutil.Process) -> None:
    """As it does in a process that talks to a cluster, and leaves it set."""
    ray = {"RAY_AUTH_MODE": "token", "PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}
    role = start_role(tmp_path / "nothing", tmp_path / "log", **ray)
    assert isinstance(role.process, ForkedProcess)
    end_roles([role])


@pytest.mark.long
def test_a_server_that_was_killed_is_done_without(make_run, own_server: module._Server) -> None:
    directory = make_run(make_config("single"), epochs=9999)
    first = start_role(directory.path, directory.logs / "chief-0.log").process
    assert isinstance(first, ForkedProcess)
    worker = psutil.Process(first.pid)
    own_server.process.kill()
    assert wait(first, 10) == -signal.SIGKILL
    worker.wait(timeout=10)
    second = start_role(directory.path / "nothing", directory.logs / "chief-0.log").process
    assert isinstance(second, subprocess.Popen)
    assert second.wait(timeout=60) == 2


LAUNCHER = """
import os, sys, time
from pathlib import Path
from rampline.jobs.fork_server import fork_server
from rampline.jobs.job import Job
from rampline.jobs.local import LOCAL
from rampline.jobs.tf_config import ALONE
with fork_server():
    job = Job(function="role", folder=Path(sys.argv[1]), environment={"TF_CONFIG": ""})
    process = LOCAL.place_jobs([job]).start(ALONE, job).process
    print(process.pid, process.poll() is None, flush=True)
    while process.poll() is None:
        time.sleep(0.02)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
@pytest.mark.long
def test_forks_end_with_the_process_that_asked_for_them(number: signal.Signals, make_run) -> None:
    directory = make_run(make_config("single"), epochs=9999)
    with subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(directory.path)], stdout=subprocess.PIPE, text=True
    ) as p:
        assert p.stdout is not None
        pid = int(p.stdout.readline().split()[0])
        worker, below = psutil.Process(pid), psutil.Process(p.pid).children()
        p.send_signal(number)
    _, alive = psutil.wait_procs([worker, *below], timeout=5)
    assert alive == []


# Imported by every Python process: a fork goes on when its server is gone, and not before.
LATE = """
import os, time
setsid, own = os.setsid, os.getpid()
def wait_and_setsid():
    while os.getppid() == own:
        time.sleep(0.01)
    setsid()
os.setsid = wait_and_setsid
"""


@pytest.mark.long
def test_a_fork_whose_server_is_gone_before_it_looks_ends(make_run, tmp_path: Path) -> None:
    directory = make_run(make_config("single"), epochs=9999)
    (tmp_path / "sitecustomize.py").write_text(LATE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]])}
    command = [sys.executable, "-c", LAUNCHER, str(directory.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as p:
        assert p.stdout is not None
        worker = psutil.Process(int(p.stdout.readline().split()[0]))
        p.kill()
    worker.wait(timeout=5)


@pytest.mark.long
def test_an_interrupt_while_it_imports_leaves_no_fork(tmp_path: Path, own_server: module._Server) -> None:
    def ask(log: str) -> ForkedProcess | None:
        return module.fork_worker([str(tmp_path / "nothing")], tmp_path / log, own_server.environment, SHARED)

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            ask("interrupted.log")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # The server has dealt with the first when it deals with the second.
    second = ask("second.log")
    assert second is not None
    assert wait(second, 60) == 2
    wait_until(lambda: not children_of(psutil.Process(own_server.process.pid)), 5)
