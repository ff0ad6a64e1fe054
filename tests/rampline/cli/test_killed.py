"""What `rampline run` leaves when it, or a server that it talks to, is killed; the longer cases are in tests/chaos."""

import itertools
import json
import os
import re
import signal
import statistics
import sys
import time

import psutil
import pytest
from command_line import (
    SMALL,
    UNHURRIED,
    flow_run_states,
    mlflow_tags,
    points,
    read_until,
    run_directory,
    wait_until,
)
from processes import processes_of, processes_with

from rampline.record.delivery_state import is_undelivered

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.usefixtures("forks", "prepared")
def test_after_kill_9_nothing_runs_or_looks_as_if_it_did(rampline, command, home, prefect_server):
    process = command("run", UNHURRIED, "--only", "baseline", prefect=prefect_server.prefect)
    read_until(process, "epoch 2/")
    roles = [role["pid"] for role in json.loads((run_directory(home) / "roles.json").read_text())["roles"]]
    assert all(psutil.pid_exists(pid) for pid in roles)
    os.kill(process.pid, signal.SIGKILL)
    uri = f"sqlite:///{home}/mlflow.db"
    gone = wait_until(lambda: not any(psutil.pid_exists(pid) for pid in roles), 15)

    def are_over() -> bool:
        return not {"RUNNING", "PENDING"} & set(flow_run_states(prefect_server.api, home))

    # A look takes time of the processor that the watchdog has need of.
    prefect = gone + wait_until(are_over, 30, every=0.5)
    killed = {"KILLED"}
    mlflow = prefect + wait_until(lambda: {run["status"] for run in mlflow_tags(uri).values()} == killed, 30, every=0.5)
    sys.stdout.write(f"kill -9: roles gone after {gone:.1f} s, Prefect {prefect:.1f} s, MLflow {mlflow:.1f} s\n")
    assert flow_run_states(prefect_server.api, home).count("CRASHED") == 2
    for run in mlflow_tags(uri).values():
        assert run["rampline.status"] == "KILLED"
        assert run["rampline.failure"] == "the process that ran it was killed"
    wait_until(lambda: not processes_of(home, "rampline.servers.watchdog"), 30)

    last = points(home / "mlflow.db", "train_loss")[-1][0]
    (run_directory(home) / "go").touch()
    resumed = rampline("run", UNHURRIED, "--resume", prefect=prefect_server.prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "continues with the settings it was started with, not those of the study's file\n" in resumed.stdout
    assert "epoch 1/8" not in resumed.stdout
    assert {name: run["rampline.status"] for name, run in mlflow_tags(uri).items()} == {
        "study": "COMPLETE",
        "baseline": "COMPLETE",
    }
    # The last epoch before the kill twice, where that was between the epoch and its checkpoint.
    assert {(step, 1) for step in range(1, 9) if step != last} < {*points(home / "mlflow.db", "train_loss")}
    assert "is complete: leave out --resume" in rampline("run", UNHURRIED, "--resume").stderr


@pytest.mark.long
@pytest.mark.usefixtures("prepared")
def test_sigterm_to_every_process_of_the_command_is_a_stop_with_a_checkpoint(command, home):
    """As Slurm and systemd do it. The Prefect server that the command has started is needed to the end."""
    process = command("run", UNHURRIED, "--only", "baseline", "--set", "epochs=200")
    read_until(process, "epoch 2/")
    for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
        os.kill(each.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "preempted: run baseline was stopped on request at step" in output
    assert "saved" in json.loads((run_directory(home) / "stop.json").read_text())


@pytest.mark.usefixtures("forks", "prepared")
@pytest.mark.long
def test_a_sigterm_that_a_job_script_ignores_is_a_stop_with_a_checkpoint_all_the_same(command, home, prefect_server):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as `trap '' TERM` does
    try:
        process = command("run", UNHURRIED, "--only", "baseline", prefect=prefect_server.prefect)
    finally:
        signal.signal(signal.SIGTERM, before)
    read_until(process, "epoch 2/")
    os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 128 + signal.SIGTERM, output
    assert "preempted: run baseline was stopped on request at step" in output


@pytest.mark.usefixtures("forks", "prepared")
@pytest.mark.long
def test_after_nohup_a_hangup_is_nothing(command, home, prefect_server):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        process = command("run", UNHURRIED, "--only", "baseline", prefect=prefect_server.prefect)
    finally:
        signal.signal(signal.SIGHUP, before)
    read_until(process, "epoch 2/")
    for each in [process, *psutil.Process(process.pid).children(recursive=True)]:
        os.kill(each.pid, signal.SIGHUP)
    (run_directory(home) / "go").touch()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    assert "epoch 8/8" in output


@pytest.mark.usefixtures("prepared")
@pytest.mark.long
@pytest.mark.parametrize(
    "numbers, status, is_heard",
    [([signal.SIGINT], 130, True), ([signal.SIGINT], 130, False), ([signal.SIGHUP] * 2, 143, False)],
    ids=["Ctrl-C", "tee", "terminal"],
)
def test_a_stop_closes_and_saves_all_also_when_nobody_can_be_told(
    command, home, prefect_server, numbers, status, is_heard
):
    """Ctrl-C ends `tee` first; a terminal that is closed hangs up twice, by its shell and by the kernel."""
    process = command("run", UNHURRIED, "--only", "baseline", "--set", "epochs=200", prefect=prefect_server.prefect)
    read_until(process, "epoch 2/")
    if not is_heard:
        process.stdout.close()
    for number in numbers:
        os.killpg(process.pid, number)
        time.sleep(0.2)
    if is_heard:
        rest, _ = process.communicate(timeout=30)
        assert "unhurried.yaml --resume` continues it" in rest
        assert "Traceback" not in rest
    assert process.wait(30) == status
    tags = mlflow_tags(f"sqlite:///{home}/mlflow.db")
    assert {name: run["status"] for name, run in tags.items()} == {"study": "KILLED", "baseline": "KILLED"}
    assert "saved" in json.loads((run_directory(home) / "stop.json").read_text())
    assert processes_with(home) == []


@pytest.mark.long
@pytest.mark.parametrize("seconds", [float(os.environ.get("RAMPLINE_TEST_OUTAGE_SECONDS", "15"))])
def test_training_does_not_wait_for_an_mlflow_server_that_is_killed(
    command, home, prefect_server, mlflow_server, tmp_path, seconds
):
    count = 10 + round(seconds)  # an epoch takes 1.3 s: 13 steps and its validation
    study = {
        "base": {
            "epochs": count,
            "steps_per_call": 1,
            "batch": {"size": 16},
            "data": {"source": "digits", "image_size": 28, "limit": 20},
            "model": {"name": "small_models:slow"},
            "explain": {"steps": 0},
        },
        "runs": {"baseline": {}},
    }
    (tmp_path / "slow.yaml").write_text(json.dumps(study))
    environment = prefect_server.prefect | {"MLFLOW_TRACKING_URI": mlflow_server.uri}
    process = command("run", str(tmp_path / "slow.yaml"), prefect=environment)
    read_until(process, "epoch 5/")
    mlflow_server.kill()
    killed = time.time()
    time.sleep(seconds)
    mlflow_server.start()
    back = time.time()
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(60) == 0, rest
    assert rest.count("MLflow does not answer, training goes on") == 1
    assert "MLflow answers again" in rest
    events = [json.loads(line) for line in (run_directory(home) / "events.jsonl").read_text().splitlines()]
    ends = [event["time"] for event in events if event["event"] == "epoch"]
    epochs = [(end - begin, killed < end < back) for begin, end in itertools.pairwise(ends)]
    during = [seconds for seconds, is_away in epochs if is_away]
    usual = statistics.median(seconds for seconds, is_away in epochs if not is_away)
    away = f"{len(during)} epochs in an outage of {back - killed:.0f} s, of {statistics.median(during):.2f} s"
    sys.stdout.write(f"{away}, the longest {max(during):.2f} s; {usual:.2f} s outside of it\n")
    assert len(during) > 5
    assert statistics.median(during) < 2 * usual
    # MLflow's client tries for most of the outage before it gives up; a machine that stands still does so for less.
    assert max(during) < (back - killed) / 2
    for metric in ("train_loss", "val_accuracy", "epoch_seconds", "elapsed_seconds"):
        assert points(mlflow_server.database, metric) == [(step, 1) for step in range(1, count + 1)]
    tags = mlflow_tags(mlflow_server.uri)
    assert {name: run["rampline.status"] for name, run in tags.items()} == {"study": "COMPLETE", "baseline": "COMPLETE"}
    assert not any(is_undelivered(file.parent) for file in home.rglob("delivery.json"))


@pytest.mark.long
@pytest.mark.usefixtures("forks", "prepared")
def test_a_preempted_run_stops_the_study_and_is_continued(rampline, command, home, prefect_server):
    process = command("run", UNHURRIED, "--only", "baseline", "--only", "after", prefect=prefect_server.prefect)
    read_until(process, "epoch 2/")
    (role,) = json.loads((run_directory(home) / "roles.json").read_text())["roles"]
    os.kill(role["pid"], signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "preempted: " in rest
    assert "unhurried.yaml --resume` continues it" in " ".join(rest.split())
    assert "Traceback" not in rest
    assert "after: " not in rest
    tags = mlflow_tags(f"sqlite:///{home}/mlflow.db")
    assert {name: (run["status"], run["rampline.status"]) for name, run in tags.items()} == {
        "study": ("KILLED", "PREEMPTED"),
        "baseline": ("KILLED", "PREEMPTED"),
    }
    (run_directory(home) / "go").touch()
    resumed = rampline("run", UNHURRIED, "--resume", prefect=prefect_server.prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert points(home / "mlflow.db", "train_loss") == [(step, 2) for step in range(1, 9)]


def test_credentials_reach_neither_mlflow_nor_the_terminal(rampline, home, prefect_server):
    secret = "hunter2hunter2"
    source = f"data.source=csv:https://me:{secret}@127.0.0.1:9/x.csv"
    refused = rampline(*SMALL, "--set", source, prefect=prefect_server.prefect)
    assert refused.returncode == 2
    assert secret not in refused.stdout + refused.stderr
    environment = prefect_server.prefect | {
        "MLFLOW_TRACKING_URI": f"http://me:{secret}@127.0.0.1:9",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "PREFECT_API_KEY": secret,
    }
    away = rampline(*SMALL, prefect=environment)
    assert away.returncode == 1
    assert re.match(r"rampline: error: MLflow at http://\*\*\*@127\.0\.0\.1:9 cannot be used: ", away.stderr)
    assert secret not in away.stdout + away.stderr
    assert not (home / "runs").exists()
