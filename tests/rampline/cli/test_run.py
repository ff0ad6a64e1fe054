"""`rampline run` with everything real: Prefect's server, role processes, MLflow; tests/test_demo.py has a whole one."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command_line import Rampline, environment_with, mlflow_tags, wait_until
from own_prefect import PrefectServer
from processes import processes_of

from rampline.data.sources import digits
from rampline.devices import free_ports
from rampline.study import preflight

pytestmark = pytest.mark.slow
STUDY = """
name: partly
base: {epochs: 2, data: {source: digits, limit: 20}, explain: {steps: 0}}
runs:
  good: {}
  late: {set: {cluster: {run_timeout_seconds: 1}, model: {name: "small_models:unhurried"}, epochs: 50}}
  child: {set: {model: {name: "small_models:unhurried", weights: "run:late"}}}
"""


OWN_NETWORK = """
import keras
import tasks

def net(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(keras.layers.Dense(tasks.UNITS)(x)))
"""


@pytest.mark.usefixtures("forks")
def test_a_failed_run_stops_only_what_starts_from_it_and_the_study_is_read_and_checked_once(
    rampline, home, tmp_path, prefect_server, monkeypatch, initialised
):
    home.mkdir(mode=0o700)
    shutil.copy(initialised, home / "mlflow.db")
    (tmp_path / "partly.yaml").write_text(STUDY)
    counts = Counter[str]()
    for module, name in ((digits, "stat_fingerprint"), (preflight, "check_study")):
        monkeypatch.setattr(module, name, counted(getattr(module, name), counts))
    sys.addaudithook(lambda event, about: counts.update(read=event == "open" and str(about[0]).endswith("partly.yaml")))
    result = rampline("run", "partly.yaml", prefect=prefect_server.prefect)
    # Its data is looked for by the check, by the preparation, which leaves nothing to do for the runs, and before and
    # after it by the check of networks that are not ours.
    assert counts == {"read": 1, "check_study": 1, "stat_fingerprint": 4}
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert re.match(r"rampline: error: run late: .*run_timeout_seconds=1; run child: not started", result.stderr)
    assert "good: test: 200 images" in result.stdout
    assert "report  " in result.stdout
    statuses = {name: tags["status"] for name, tags in mlflow_tags(f"sqlite:///{home}/mlflow.db").items()}
    assert statuses == {"study": "FAILED", "good": "FINISHED", "late": "FAILED"}
    # The thread of a run's page knows the server, too: without, Prefect would start another one for it.
    below = [" ".join(process.cmdline()) for process in psutil.Process().children()]
    assert not [command for command in below if "prefect.server.api.server" in command]
    assert processes_of(home) == []


def counted(function, counts):
    def wrapped(*arguments, **named):
        counts[function.__name__] += 1
        return function(*arguments, **named)

    return wrapped


@pytest.mark.usefixtures("forks", "prepared")
def test_a_person_starts_both_roles_of_a_run(
    rampline: Rampline, command: Callable[..., subprocess.Popen[str]], home: Path, prefect_server: PrefectServer
) -> None:
    """As on two machines: `rampline run` starts worker 0, and `rampline worker` the other one."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    tasks = [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": i}})} for i in range(2)]
    directory, joined = home / "runs" / "digits" / "e1" / "multi-worker", list[subprocess.Popen[str]]()

    def join() -> None:
        wait_until((directory / "config.json").is_file, 100)
        joined.append(command("worker", str(directory), prefect=tasks[1]))

    other = threading.Thread(target=join)
    other.start()
    settings = [f"--set={setting}" for setting in ("epochs=1", "data.limit=20", "explain.steps=0", "parity.steps=0")]
    words = ("run", "digits", "--only", "multi-worker", "--launcher", "hand", "--execution", "e1", *settings)
    result = rampline(*words, prefect=prefect_server.prefect | tasks[0])
    assert (result.returncode, result.stderr) == (0, "")
    other.join()
    output, _ = joined[0].communicate(timeout=60)
    assert joined[0].returncode == 0, output
    assert output.startswith(f"joining the run in {directory} as worker 1\n")
    assert output.endswith("\nthe run is complete\n")
    assert f"start each with  rampline worker {directory}" in result.stdout
    assert "multi-worker: test: 200 images" in result.stdout
    roles = json.loads((directory / "roles.json").read_text())["roles"]
    assert [role["address"] for role in roles] == cluster["worker"]


@pytest.mark.usefixtures("forks")
def test_images_that_do_not_decode_leave_no_execution(rampline, home, tmp_path, prefect_server):
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "images" / label / f"{number}.jpg").write_bytes(b"no image")
    source = f"data.source=folder:{tmp_path}/images"
    result = rampline("run", "digits", "--only", "baseline", "--set", source, prefect=prefect_server.prefect)
    assert result.returncode == 2
    assert result.stderr.startswith("rampline: error: ")
    assert result.stderr.count("\n") == 1
    assert not (home / "runs").exists()
    assert not (home / "mlflow.db").exists()


@pytest.mark.long
def test_modules_in_the_working_folder_take_no_place_of_ours_and_a_network_there_is_found(
    rampline_process, home, tmp_path, prefect_server
):
    for name in ("flows", "rampline", "json", "numpy", "prefect", "mlflow", "uvicorn"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise SystemExit('{name} of the working folder was imported')")
    (tmp_path / "tasks.py").write_text("UNITS = 7")
    (tmp_path / "nets.py").write_text(OWN_NETWORK)
    base = "{epochs: 1, data: {source: digits, limit: 20}, model: {name: 'nets:net'}, explain: {steps: 0}}"
    (tmp_path / "own.yaml").write_text(f"base: {base}\nruns: {{only: {{}}}}")
    result = rampline_process("run", "own.yaml", prefect=prefect_server.prefect)
    assert (result.returncode, result.stderr) == (0, "")
    (summary,) = home.glob("runs/own/*/only/model_summary.txt")
    assert "(None, 7)" in summary.read_text()


RUN = """
import logging
from rampline.cli.run import run
try:
    run("digits", only=["baseline"])
except Exception as error:
    print(type(error).__name__)
print(logging.raiseExceptions)
"""


@pytest.mark.long
def test_a_program_that_runs_a_study_has_its_logging_back(home, tmp_path):
    """Prefect's errors in logging are kept quiet while it runs; here nobody answers, and there is no home yet."""
    environment = environment_with(home, {"PREFECT_API_URL": "http://127.0.0.1:9/api"})
    done = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines()[-2:] == ["PrefectLost", "True"], done.stderr
