"""A run is checked for parity before it trains, and MLflow is told."""

from pathlib import Path

import pytest
from executions import begin

from rampline.data.dataset import PreparedDataset
from rampline.errors import RunFailed
from rampline.execution import train_run
from rampline.files import read_json
from rampline.record.home import Home
from rampline.study.execution_file import Execution
from rampline.tracking.store import open_tracking

STUDY = """
name: checked
base:
  strategy: mirrored
  epochs: 1
  data: {source: digits, limit: 12, cache: memory}
  batch: {size: 28}
  explain: {steps: 0}
  cluster: {replicas: 2, virtual_devices: 2}
runs:
  wrong: {set: {model: {name: "parity_models:with_other_examples"}}}
  wrong-but-wanted: {set: {model: {name: "parity_models:with_other_examples"}, parity: {on_failure: continue}}}
"""


@pytest.fixture
def execution(digits: PreparedDataset, rampline_home: Path, forks: None, tmp_path: Path) -> Execution:
    study = tmp_path / "checked.yaml"
    study.write_text(STUDY)
    return begin(study, Home(root=rampline_home), f"x-{tmp_path.name}")


def logged(execution: Execution, run: str) -> tuple[str, dict[str, str], dict[str, float]]:
    """Status, tags and metrics of the run in MLflow."""
    run_id = read_json(execution.directory(run).tracking_file)["run_id"]
    found = open_tracking(Home.from_environment()).get_run(run_id)
    return found.info.status, found.data.tags, found.data.metrics


def test_a_failed_check_stops_the_run_before_it_trains_unless_told_otherwise(execution: Execution) -> None:
    with pytest.raises(RunFailed, match=r"parity fail: .*--set parity\.on_failure=continue"):
        train_run(execution, "wrong", on_event=lambda event: None, log=print)
    assert not execution.directory("wrong").checkpoints.exists()
    status, tags, metrics = logged(execution, "wrong")
    assert (status, tags["rampline.parity"], tags["rampline.status"]) == ("FAILED", "fail", "FAILED")
    assert tags["rampline.failure"].startswith("parity fail: ")
    assert metrics["parity_max_loss_diff"] > 1e-3
    result = train_run(execution, "wrong-but-wanted", on_event=lambda event: None, log=print)
    assert result["epochs"] == 1
    assert logged(execution, "wrong-but-wanted")[1]["rampline.parity"] == "fail"
