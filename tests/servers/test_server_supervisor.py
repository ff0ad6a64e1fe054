"""A process that ends is started again, with what it had left ended first; one that cannot run ends all."""

import io
import os
import signal
import time

import psutil
import pytest
from command_line import wait_until

from rampline.devices import free_ports
from rampline.errors import InputError, RamplineError
from rampline.files import locked
from rampline.jobs.device_queue import Ticket, hold_devices
from rampline.record.home import Home
from rampline.servers import server_supervisor
from rampline.servers.processes import counting_signals, end_all, hold_lock, lock_holder, marked
from rampline.servers.running import answers
from rampline.servers.server_plan import Request, make_plan
from rampline.servers.server_supervisor import Idle, Supervisor, Watch
from rampline.servers.services import Service
from rampline.servers.up import end_servers


@pytest.fixture
def home(tmp_path):
    home = Home(root=tmp_path / "home")
    (home.root / "servers").mkdir(parents=True)
    yield home
    end_all(home)


def service_of(home: Home, *arguments: str, port: int = 0) -> Service:
    return Service(
        name="prefect",
        title="the server",
        home=home,
        command=arguments,
        # Its folder is not searched for modules.
        environment=os.environ | {"PYTHONPATH": str(home.root)},
        folder=home.root,
        health=lambda _created: answers(f"http://127.0.0.1:{port}"),
    )


def test_one_that_is_killed_is_started_again(home, monkeypatch, capsys):
    monkeypatch.setattr(server_supervisor, "FIRST_PAUSE_SECONDS", 0.1)
    (port,) = free_ports(1)
    service, said, starts = service_of(home, "http.server", str(port), port=port), [], []

    def look() -> bool:
        watching.look()
        said.extend(capsys.readouterr().out.splitlines())
        return len(said) == 2

    service.start()
    service.wait_for_answer()
    watching = Watch([service], on_start=lambda: starts.append(service.state))
    look()
    assert service.process is not None
    os.kill(service.process.pid, signal.SIGKILL)
    service.process.wait()
    wait_until(look, 20)
    assert said[0].startswith("the server ended (SIGKILL) and is started again")
    assert said[1] == "the server is back"
    assert len(starts) == 1


def test_one_that_always_ends_is_given_up(home, monkeypatch, capsys):
    monkeypatch.setattr(server_supervisor, "FIRST_PAUSE_SECONDS", 0.01)
    service = service_of(home, "no_such_module")
    service.start()
    watching = Watch([service], on_start=lambda: None)
    with pytest.raises(RamplineError, match=r"ended 5 times .* exit status 1: .*no_such_module.*; see .*prefect.log"):
        wait_until(lambda: watching.look() is not None, 60)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_prefect_is_started_while_no_command_of_the_home_starts_one(home, monkeypatch):
    """Both would make the tables of one database."""
    monkeypatch.setenv("PREFECT_HOME", str(home.root / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    (port,) = free_ports(1)
    service, free = service_of(home, "http.server", str(port)), []

    def is_free() -> bool:
        with locked(home.root / "prefect" / "start.lock", seconds=0) as is_held:
            return is_held

    def answers_meanwhile(_created: float) -> bool:
        free.append(is_free())
        return answers(f"http://127.0.0.1:{port}")

    service.health = answers_meanwhile
    monkeypatch.setattr(server_supervisor, "prefect_service", lambda _plan: service)
    Supervisor(make_plan(Request(home=home)))._start_servers()
    assert set(free) == {False}
    assert is_free()


def test_the_command_of_an_idle_machine_runs_once_after_each_work(tmp_path, monkeypatch, capsys):
    ran, work, now = tmp_path / "ran", [], [0.0]
    monkeypatch.setattr(server_supervisor.time, "monotonic", lambda: now[0])
    idle = Idle(f"echo off >> {ran}", 60.0, is_busy=lambda: bool(work))

    def told_at(*seconds: float) -> int:
        for now[0] in seconds:
            idle.look()
        return capsys.readouterr().out.count("nothing has run for 1 minutes: echo off")

    assert told_at(20, 40) == 0
    assert told_at(61, 80, 200) == 1
    work.append("a flow run")
    assert told_at(300, 400) == 0
    work.clear()
    assert told_at(420, 450) == 0
    assert told_at(470, 480) == 1
    monkeypatch.undo()
    wait_until(lambda: ran.is_file() and ran.read_text() == "off\noff\n", 20)


def test_a_run_that_has_devices_is_work(home):
    assert not server_supervisor.is_busy(home)
    with hold_devices(home, Ticket(name="digits/1", submitted_at=0.0, devices=1, owner="me"), slots=1, log=print):
        assert server_supervisor.is_busy(home)


def test_a_start_that_fails_names_the_last_line_of_the_log(home):
    service = service_of(home, "no_such_module", port=1)
    service.start()
    with pytest.raises(RamplineError, match=r"did not start \(exit status 1\): .*no_such_module"):
        service.wait_for_answer()


def test_all_that_a_service_has_started_is_found_and_ended(home):
    # A grandchild in a session of its own that ignores SIGTERM.
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    program = home.root / "program.py"
    program.write_text(
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {code!r}], start_new_session=True)"
    )
    service_of(home, "program").start()
    wait_until(lambda: len(list(marked(home))) == 2, 20)
    found = [process for process, part in marked(home) if part == "prefect"]
    assert len(found) == 2
    began = time.monotonic()
    end_all(home, is_urgent=lambda: True)
    assert time.monotonic() - began < 5
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in found)


def test_a_follower_that_leaves_while_all_ends_does_not_ask_for_more_haste(monkeypatch):
    """As it does when Ctrl-C has ended `tee`: a second signal ends flow runs before they have saved."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with counting_signals() as count:
        server_supervisor._end_without_follower()
        assert count() == 0


def test_one_holds_the_lock(home):
    assert lock_holder(home) is None
    with hold_lock(home) as first, hold_lock(home) as second:
        assert (first, second) == (True, False)
        assert lock_holder(home) == os.getpid()
        lock = home.root / "servers" / "lock"
        # A number that no process has.
        lock.write_text("process 999999999 on another-machine")
        with pytest.raises(InputError, match=r"runs on another-machine: end it there$"):
            end_servers(home)
    assert lock_holder(home) is None
