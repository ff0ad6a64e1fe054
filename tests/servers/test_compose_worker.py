"""The worker of compose.yaml, as a plain process."""

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import environment_with, wait_until

from rampline.record.home import Home
from rampline.servers.processes import end_leftovers, lock_holder, marked

# A flow run that saves when it is asked to end.
FLOW = """
import sys, time
from pathlib import Path
from prefect import flow

@flow
def held(folder: str):
    Path(folder, "runs").touch()
    try:
        time.sleep(600)
    finally:
        time.sleep(2)
        Path(folder, "saved").touch()

if __name__ == "__main__":
    folder = str(Path(__file__).parent)
    flow.from_source(source=folder, entrypoint="held.py:held").deploy("held", "held", print_next_steps=False)
"""
RUN = ["-m", "prefect", "deployment", "run", "held/held"]


def test_while_it_runs_nobody_takes_it_for_a_leftover(tmp_path: Path) -> None:
    home = Home(root=tmp_path)
    command = [sys.executable, "-m", "rampline.servers.compose_worker", "--pool", "held"]
    environment = environment_with(tmp_path, {"PREFECT_API_URL": "http://127.0.0.1:9/api"})
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            wait_until(lambda: next(marked(home), None) is not None, 30)
            assert lock_holder(home) == worker.pid
            assert {file.stat().st_mode & 0o077 for file in tmp_path.rglob("*")} == {0}
            assert not end_leftovers(home)
            assert next(marked(home), None) is not None
        finally:
            worker.terminate()
    assert lock_holder(home) is None


@pytest.mark.long
def test_asked_to_end_it_lets_its_flow_runs_save(tmp_path: Path, prefect_server) -> None:
    (tmp_path / "held.py").write_text(FLOW)
    environment = environment_with(tmp_path / "home", prefect_server.prefect)
    command = [sys.executable, "-m", "rampline.servers.compose_worker", "--pool", "held", "--type", "process"]
    with open(tmp_path / "log", "w") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: "started" in (tmp_path / "log").read_text(), 60)
        for arguments in (["held.py"], [*RUN, "--param", f"folder={tmp_path}"]):
            subprocess.run([sys.executable, *arguments], env=environment, cwd=tmp_path, check=True)
        wait_until((tmp_path / "runs").exists, 60)
    finally:
        worker.terminate()
        worker.wait(60)
    assert (tmp_path / "saved").exists()
