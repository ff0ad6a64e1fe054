"""`rampline run --resume` in an empty home, after the machine that ran the study is gone with its own."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from command_line import environment_with, points, read_until, wait_until
from processes import processes_with
from s3_server import S3

from rampline.record.object_store import ObjectStore
from rampline.record.run_directory import RunDirectory
from rampline.study.stored_execution import Manifest, owners_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
# An epoch takes 0.35 s.
STUDY = """
name: stored
base:
  epochs: 14
  steps_per_call: 1
  data: {source: digits, limit: 20}
  model: {name: "small_models:slow"}
  explain: {steps: 0}
runs:
  baseline: {}
"""


def stored_step(store: ObjectStore) -> int:
    """Of the last checkpoint that another machine would find."""
    manifest = Manifest.newest(store, "runs/stored/e1")
    names = manifest.files if manifest else {}
    return max((int(name.split("/")[3][5:]) for name in names if name.endswith("progress.json")), default=0)


@pytest.mark.long
@pytest.mark.usefixtures("forks")
def test_a_study_goes_on_elsewhere(
    rampline, command, home: Path, prefect_server, initialised, s3: S3, tmp_path
) -> None:
    study = tmp_path / "stored.yaml"
    study.write_text(STUDY)
    store = ObjectStore.from_environment()
    assert store
    assert environment_with(home)["RAMPLINE_STORE"] == s3.url
    first = command("run", str(study), "--execution", "e1", prefect=prefect_server.prefect)
    read_until(first, "epoch 2/")
    wait_until(lambda: stored_step(store) > 0, 10)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    # Another machine has no watchdog of this one, which would log the killed execution there too.
    wait_until(lambda: not processes_with(home), 60)
    shutil.rmtree(home)
    step = stored_step(store)
    home.mkdir(mode=0o700)
    shutil.copy(initialised, home / "mlflow.db")

    resumed = rampline("run", str(study), "--resume", prefect=prefect_server.prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert f"fetching execution e1 from {s3.url}" in resumed.stdout
    assert "reading" not in resumed.stdout  # the images
    started = RunDirectory(home / "runs" / "stored" / "e1" / "baseline").read_events("started")[-1]
    assert started["first_step"] == step
    trained = [line.split("epoch ")[1].split("/")[0] for line in resumed.stdout.splitlines() if ": epoch " in line]
    assert trained == [str(epoch) for epoch in range(step // started["steps_per_epoch"] + 1, 15)]
    logged = points(home / "mlflow.db", "train_loss")
    # One twice, where the kill was between it and its checkpoint.
    logged = [(epoch, 1) if (epoch, times) == (int(trained[0]), 2) else (epoch, times) for epoch, times in logged]
    assert logged == [(epoch, 1) for epoch in range(1, 15)]
    assert [owner[:5] for owner in owners_of(store, "runs/stored/e1")] == ["0002-"]
    report = (home / "reports" / "stored" / "e1" / "report.html").read_bytes()
    key = "pre/fix/reports/stored/e1/report.html"
    assert s3.client.get_object(Bucket=s3.bucket, Key=key)["Body"].read() == report
    again = rampline("run", str(study), "--resume")
    assert "is complete: leave out --resume" in again.stderr
