"""A grid with `search: halving`, trained in real processes: which run goes on, and why the others were stopped."""

import re
from pathlib import Path

import numpy as np
import pytest
from executions import begin
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

from rampline.comparison.runs import read_comparison
from rampline.comparison.sentences import list_remarks
from rampline.data.dataset import PreparedDataset
from rampline.execution import train_run
from rampline.files import read_json
from rampline.record.checkpoints import last_checkpoint
from rampline.record.home import Home
from rampline.study.execution_file import Execution
from rampline.study.halving import turns
from rampline.tracking.store import open_tracking

STUDY = """
name: halved
base:
  epochs: 6
  model: {name: "small_models:regularised"}
  data: {source: digits, limit: 12, cache: memory}
  batch: {size: 28}
  steps_per_call: 5
  learning_rate: {schedule: cosine, ramp_epochs: 1}
  explain: {steps: 0}
runs:
  straight: {set: {learning_rate: {peak: 0.01}}}
grid:
  g:
    search: halving
    over:
      rate:
        tiny: {learning_rate: {peak: 1.0e-6}}
        good: {learning_rate: {peak: 0.01}}
        small: {learning_rate: {peak: 1.0e-5}}
        short: {learning_rate: {peak: 1.0e-5}, stop: {target_accuracy: 0.01}}
"""


@pytest.fixture
def execution(digits: PreparedDataset, rampline_home: Path, forks: None, tmp_path: Path) -> Execution:
    study = tmp_path / "halved.yaml"
    study.write_text(STUDY)
    return begin(study, Home(root=rampline_home), f"x-{tmp_path.name}")


@pytest.mark.long
def test_the_best_run_goes_on_with_the_bits_of_a_straight_one_and_the_others_say_why_they_stopped(
    execution: Execution, rampline_home: Path
) -> None:
    client, told, events = open_tracking(Home(root=rampline_home)), list[str](), dict[str, list[str]]()
    for run, goal in turns(execution):
        told.append(f"{run.name} {goal.epoch if goal else '-'}{'!' if goal and goal.stopped else ''}")
        kinds = events.setdefault(run.name, [])
        train_run(execution, run.name, on_event=lambda event, kinds=kinds: kinds.append(event["event"]), log=print)
        if told[-1] == "g-good 2":
            assert status_of(client, execution, "g-tiny") == status_of(client, execution, "g-good") == "RUNNING"
    first = ["straight -", "g-tiny 2", "g-good 2", "g-small 2", "g-short 2"]
    assert told == [*first, "g-tiny 2!", "g-good 6", "g-small 2!"]
    results = {run.name: read_json(execution.directory(run.name).result_file) for run in execution.study.runs}
    good, straight = (last_checkpoint(execution.directory(run).checkpoints) for run in ("g-good", "straight"))
    assert good is not None
    assert straight is not None
    with np.load(good / "variables.npz") as ours, np.load(straight / "variables.npz") as theirs:
        assert sorted(ours) == sorted(theirs)
        assert [name for name in theirs if ours[name].tobytes() != theirs[name].tobytes()] == []
    assert {name: results["g-good"][name] for name in ("epochs", "stopped", "attempts", "steps")} == {
        name: results["straight"][name] for name in ("epochs", "stopped", "attempts", "steps")
    }
    for name in ("g-tiny", "g-small"):
        why = r"after epoch 2 of 6: ranked [234] of 4 by validation accuracy \(0\.\d{4}\), and halving keeps 1"
        assert re.fullmatch(why, results[name]["stopped"])
        assert (results[name]["epochs"], results[name]["steps"]) == (2, results["straight"]["steps"] / 3)
        assert [kind for kind in events[name] if kind not in ("progress", "checkpoint")] == [
            *("started", "epoch", "epoch", "rested", "decided", "finished")
        ]
    assert results["g-short"]["stopped"] == "after epoch 1 of 6: target accuracy 0.01 reached"
    assert {status_of(client, execution, run) for run in results} == {"FINISHED"}
    comparison = read_comparison(client, "halved", execution.parent_run_id, for_report=False)
    assert {row["run"]: row["stopped"] or None for row in comparison.rows} == {
        name: result["stopped"] for name, result in results.items()
    }
    note = run_of(client, execution, "g-good").data.tags["mlflow.note.content"]
    assert "at most 6 epochs (it stops after epoch 2 unless it is among the best third of grid g)" in note
    assert f"g-tiny stopped {results['g-tiny']['stopped']}." in list_remarks(comparison)


def run_of(client: MlflowClient, execution: Execution, run: str) -> Run:
    return client.get_run(read_json(execution.directory(run).tracking_file)["run_id"])


def status_of(client: MlflowClient, execution: Execution, run: str) -> str:
    return run_of(client, execution, run).info.status
