"""`rampline run` of a grid with `search: halving` that is killed, and asked to stop: it ends as if it were not."""

import re
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import mlflow_tags, read_until
from faults import assert_bit_equal

from rampline.files import read_json
from rampline.record.run_directory import RunDirectory
from rampline.study.execution_file import Execution

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
STUDY = """
name: halved
base:
  epochs: 6
  data: {source: digits, limit: 20}
  batch: {size: 32}
  model: {name: "small_models:with_all_state"}
  learning_rate: {schedule: cosine, ramp_epochs: 1}
  explain: {steps: 0}
runs:
  straight: {set: {learning_rate: {peak: 1.0e-2}}}
grid:
  g:
    search: halving
    set: {explain: {steps: 1}}
    over:
      rate:
        a: {learning_rate: {peak: 1.0e-6}}
        b: {learning_rate: {peak: 1.0e-5}}
        c: {learning_rate: {peak: 1.0e-2}}
        d: {learning_rate: {peak: 1.0e-4}, strategy: mirrored, cluster: {replicas: 2, virtual_devices: 2}}
  after: {set: {model: {weights: "run:g-c"}}, over: {seed: [1]}}
"""


def runs_of(home: Path, execution: str) -> dict[str, RunDirectory]:
    opened = Execution.open(home / "runs" / "halved" / execution)
    return {run.name: opened.directory(run.name) for run in opened.study.runs}


def train_whole(
    rampline, file: Path, home: Path, prefect
) -> tuple[dict[str, RunDirectory], dict[str, dict[str, Any]], list[str]]:
    """An execution that nothing disturbs: its run directories, their results, and which runs halving has stopped."""
    plan = " ".join(rampline("plan", str(file)).stdout.split())
    assert "stops before its last epoch after epoch 2 unless it is among the best third of grid g" in plan
    whole = rampline("run", str(file), "--execution", "whole", prefect=prefect)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout.count("g-d: parity") == 1
    runs = runs_of(home, "whole")
    results = {name: read_json(run.result_file) for name, run in runs.items()}
    lost = [name for name, result in results.items() if result["epochs"] == 2]
    assert lost == ["g-a", "g-b", "g-d"]
    assert {result["epochs"] for name, result in results.items() if name not in lost} == {6}
    why = r"after epoch 2 of 6: ranked [234] of 4 by validation accuracy \(0\.\d{4}\), and halving keeps 1"
    assert all(re.fullmatch(why, results[name]["stopped"]) for name in lost)
    # The one that went on has the bits of one that never rested.
    assert_bit_equal(runs["g-c"], runs["straight"])
    return runs, results, lost


@pytest.mark.usefixtures("forks", "prepared")
def test_a_study_that_is_killed_and_stopped_at_its_rungs_comes_to_the_same(
    rampline, command, home: Path, prefect_server, tmp_path: Path
) -> None:
    file, prefect = tmp_path / "halved.yaml", prefect_server.prefect
    file.write_text(STUDY)
    theirs, wanted, lost = train_whole(rampline, file, home, prefect)

    hit = ("run", str(file), "--execution", "hit")
    process = command(*hit, prefect=prefect)
    read_until(process, "g-b: waits after epoch 2")
    process.kill()  # in the middle of the first rung
    process.wait()
    process = command(*hit, prefect=prefect)
    output = read_until(process, f"{lost[1]}: stopped after epoch 2 of 6")
    assert "g-a: epoch" not in output
    assert "continues with the settings" not in output
    process.kill()  # some have their decision, others have not
    process.wait()
    process = command(*hit, "--set", "epochs=9", prefect=prefect)
    output = read_until(process, "steps per epoch, peak learning rate")  # the one that goes on
    assert "execution hit continues with the settings it was started with\n" in output
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=90)
    assert process.returncode == 143, rest
    tags = mlflow_tags(f"sqlite:///{home}/mlflow.db", "hit")
    finished = {name for name, run in tags.items() if run["status"] == "FINISHED"}
    assert finished == {name for name, run in runs_of(home, "hit").items() if run.is_complete} < wanted.keys()
    resumed = rampline("run", str(file), "--resume", prefect=prefect)
    assert (resumed.returncode, resumed.stderr) == (0, "")

    ours = runs_of(home, "hit")
    results = {name: read_json(run.result_file) for name, run in ours.items()}
    for figure in ("stopped", "epochs", "steps", "best_epoch", "best_val_accuracy"):
        assert {name: result[figure] for name, result in results.items()} == {
            name: result[figure] for name, result in wanted.items()
        }
    for name, run in ours.items():
        assert_bit_equal(run, theirs[name])
        assert run.evaluation_file.is_file()
        # Probes come after the last epoch.
        assert run.probes_file.is_file() == (name == "g-c")
    for execution in ("hit", "whole"):
        tags = mlflow_tags(f"sqlite:///{home}/mlflow.db", execution)
        assert {run["status"] for run in tags.values()} == {"FINISHED"}
        stopped = {name: run.get("rampline.stopped") for name, run in tags.items() if name != "study"}
        assert stopped == {name: result["stopped"] for name, result in wanted.items()}
