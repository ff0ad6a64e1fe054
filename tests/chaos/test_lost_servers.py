"""Servers that go away and do not come back."""

import os
import re
import signal
import sys
import time

from command_line import (
    SMALL,
    mlflow_tags,
    points,
    read_until,
    run_directory,
)
from own_prefect import own_prefect


def test_a_run_whose_tracking_never_came_back_is_delivered_later(rampline, command, home, stack, mlflow_server):
    environment = stack.prefect | {"MLFLOW_TRACKING_URI": mlflow_server.uri, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
    process = command(*SMALL, "--set", "epochs=20", prefect=environment)
    read_until(process, "epoch 2/")
    mlflow_server.kill()
    assert process.stdout is not None
    rest = process.stdout.read()
    assert process.wait(300) == 1
    assert "Traceback" not in rest
    assert "baseline: MLflow has not got all of it: `rampline sync digits` delivers the rest later" in rest
    assert re.search(r"rampline: error: the runs cannot be compared: .*`rampline sync digits`, then `rampline", rest)
    assert (run_directory(home) / "result.json").is_file()
    away = rampline("sync", prefect=environment)
    assert (away.returncode, away.stderr.count("\n")) == (1, 1)

    mlflow_server.start()
    synced = rampline("sync", "digits", prefect=environment)
    assert (synced.returncode, synced.stderr) == (0, "")
    assert re.search(r"baseline: delivered \d+ epochs, result, evaluation, COMPLETE", synced.stdout)
    assert points(mlflow_server.database, "train_loss") == [(step, 1) for step in range(1, 21)]
    tags = mlflow_tags(mlflow_server.uri)
    assert {name: run["status"] for name, run in tags.items()} == {"study": "FAILED", "baseline": "FINISHED"}
    compared = rampline("compare", "digits", prefect=environment)
    assert compared.returncode == 0
    assert "report  " in compared.stdout
    assert rampline("sync", prefect=environment).stdout == "MLflow has everything\n"


def test_losing_prefect_does_not_end_the_roles(rampline, command, home, stack, tmp_path):
    with own_prefect(tmp_path) as (prefect, environment):
        process = command(*SMALL, "--set", "epochs=20", prefect=environment)
        read_until(process, "epoch 2/")
        os.killpg(prefect.pid, signal.SIGKILL)
        assert process.stdout is not None
        began = time.monotonic()
        rest = process.stdout.read()
        assert process.wait(280) == 1
    sys.stdout.write(f"left {time.monotonic() - began:.0f} s after the loss of Prefect\n")
    assert "epoch 20/20" in rest
    assert (run_directory(home) / "result.json").is_file()
    errors = [line for line in rest.splitlines() if line.startswith("rampline: error: ")]
    assert len(errors) == 1
    assert "stopped answering" in errors[0]
    assert "`rampline run digits --resume` continues" in rest
    for noise in ("Traceback", "httpx", "--- Error logging"):
        assert noise not in rest
    tags = mlflow_tags(f"sqlite:///{home}/mlflow.db")
    assert {name: run["rampline.status"] for name, run in tags.items()} == {"study": "FAILED", "baseline": "COMPLETE"}
    resumed = rampline("run", "digits", "--resume", prefect=stack.prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "report  " in resumed.stdout
