"""The command as a job of Ray: Ray starts it on the head, and stops it with SIGTERM."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import RAMPLINE, UNHURRIED, wait_until
from processes import processes_of
from ray_node import make_address, ray_node

from rampline.devices import free_ports
from rampline.record.run_directory import RunDirectory

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]
# By itself Ray kills a job 3 s after it has asked it to stop.
PATIENT = json.dumps({"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "30"}})


def test_a_job_that_is_stopped_saves_a_checkpoint(tmp_path: Path) -> None:
    home, (port,) = tmp_path / "home", free_ports(1)
    environment = {**os.environ, **make_address(), "RAMPLINE_HOME": str(home)}
    # For Ray's own commands that would be where jobs are submitted.
    asking = {name: value for name, value in environment.items() if name != "RAY_ADDRESS"}

    def ask(what: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("ray")), "job", what, f"--address=http://127.0.0.1:{port}"]
        return subprocess.run([*command, *words], env=asking, capture_output=True, text=True, check=False)

    def events(*kinds: str) -> list[str]:
        files = home.glob("runs/unhurried/*/multi-worker/events.jsonl")
        return [event["event"] for file in files for event in RunDirectory(file.parent).read_events(*kinds)]

    dashboard = ("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}")
    with ray_node(environment, 4, *dashboard):
        wait_until(lambda: ask("list").returncode == 0, 60)
        run = (str(RAMPLINE), "run", UNHURRIED, "--only", "multi-worker", "--launcher", "ray")
        submit = ("submit", "--no-wait", "--submission-id=one", f"--runtime-env-json={PATIENT}", "--", *run)
        # On a busy machine the dashboard answers before there is an agent that can start a job.
        # A try that it has answered too late for was one all the same.
        wait_until(lambda: (tried := ask(*submit)).returncode == 0 or "already exists" in tried.stderr, 180)
        wait_until(lambda: bool(events("epoch")), 200)
        ask("stop", "one")
        assert events()[-2:] == ["checkpoint", "stopped"]
        assert not processes_of(home, "rampline.worker")
        assert "--resume` continues it" in ask("logs", "one").stdout


def test_auto_looks_at_the_gpus_of_the_nodes(tmp_path: Path) -> None:
    """Ray takes the user's word for the number; the machine of the command may have none."""
    environment = {**os.environ, **make_address(), "RAMPLINE_HOME": str(tmp_path / "home")}
    auto = ("--set", "cluster.launcher=ray", "--set", "cluster.virtual_devices=auto")
    with ray_node(environment, 2, "--num-gpus=2"):
        planned = subprocess.run(
            [str(RAMPLINE), "plan", "digits", "--only", "baseline", "--only", "mirrored-ramp", *auto],
            env=environment | {"CUDA_VISIBLE_DEVICES": "-1", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert planned.returncode == 0, planned.stderr
    assert "2 GPU" in planned.stdout
