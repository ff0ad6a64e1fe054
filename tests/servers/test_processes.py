"""What `rampline up` starts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import wait_until

from rampline.cli import _leave
from rampline.record.home import Home
from rampline.servers.processes import (
    MODULE,
    counting_signals,
    end_all,
    end_leftovers,
    is_ending,
    lock_holder,
    marked,
    start,
)


def test_neither_a_process_nor_what_it_starts_looks_for_modules_where_it_runs(tmp_path):
    (tmp_path / "yaml.py").write_text("")
    say = "import yaml; print(yaml.__file__, flush=True)"
    code = f"{say}; import subprocess, sys; subprocess.run([sys.executable, '-c', {say!r}])"
    log = tmp_path / "log"
    places = {"home": Home(root=tmp_path), "folder": tmp_path, "log": log}
    assert start(["-c", code], part="worker", environment=os.environ, **places).wait(60) == 0
    assert log.read_text().splitlines() == [yaml.__file__] * 2


def test_temporary_files_are_in_the_home_where_no_other_user_has_been_before(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text("import tempfile; print(tempfile.gettempdir())")
    command = [sys.executable, "-m", MODULE, str(os.getpid()), "told"]
    environment = {**os.environ, "RAMPLINE_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path)}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == str(tmp_path / "home/servers/tmp")


def test_a_terminal_that_is_closed_asks_once():
    """It hangs up twice: its shell tells its jobs, and the kernel when that has ended."""
    before = signal.getsignal(signal.SIGHUP)
    try:
        with counting_signals() as count:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
            assert count() == 1
        with pytest.raises(SystemExit):
            _leave(signal.SIGHUP, None)
        with counting_signals() as count:
            os.kill(os.getpid(), signal.SIGHUP)
            assert count() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


# A supervisor of two services that do nothing; a process of one of them saves when it is asked to end.
SUPERVISOR = """
import os, sys, time
from pathlib import Path
from rampline.record.home import Home
from rampline.servers.processes import MODULE, start
home = Home(root=Path(sys.argv[1]))
for part in ("worker", "mlflow"):
    command = ["-m", MODULE, str(os.getpid()), f"idle_{part}"]
    start(command, part=part, home=home, environment=os.environ, folder=home.root, log=home.root / f"{part}.log")
print("started", flush=True)
time.sleep(600)
"""
FLOW_RUN = """
import signal, sys, time
def save(*_):
    time.sleep(2)
    open("saved", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, save)
open("runs", "w").close()
time.sleep(600)
"""


def test_after_a_kill_of_the_supervisor_its_services_end_all_in_order(tmp_path):
    home = Home(root=tmp_path / "home")
    (home.root / "servers").mkdir(parents=True)
    (home.root / "flow_run.py").write_text(FLOW_RUN)
    (home.root / "idle_mlflow.py").write_text("import time; time.sleep(600)")
    start_flow_run = "subprocess.run([sys.executable, 'flow_run.py'], start_new_session=True)"
    (home.root / "idle_worker.py").write_text(f"import subprocess, sys; {start_flow_run}")
    environment = os.environ | {"PYTHONPATH": str(home.root)}
    command = [sys.executable, "-c", SUPERVISOR, str(home.root)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as supervisor:
        try:
            wait_until((home.root / "runs").exists, 30)
            assert len(list(marked(home))) == 3
            supervisor.kill()
            supervisor.wait()
            # One of its services has the lock; who comes meanwhile waits for it.
            wait_until(lambda: is_ending(home), 10)
            assert end_leftovers(home)
            assert (home.root / "saved").exists()
            assert not list(marked(home))
            assert lock_holder(home) is None
        finally:
            end_all(home)
