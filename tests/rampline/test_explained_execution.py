"""Runs that cannot be explained, or not in full, still count."""

import logging
from pathlib import Path

import pytest
from executions import begin

from rampline.data.dataset import PreparedDataset
from rampline.execution import explain_runs, train_run
from rampline.explain.explanation import Explanation
from rampline.files import read_json
from rampline.record.delivery_state import is_undelivered
from rampline.record.home import Home
from rampline.study.execution_file import Execution
from rampline.tracking.store import open_tracking

STUDY = """
name: explained
base: {epochs: 1, data: {source: digits, limit: 12, cache: memory}, batch: {size: 28}}
runs:
  probed: {set: {model: {name: "small_models:smooth"}}}
  quiet: {set: {explain: {steps: 0}}}
"""


@pytest.fixture
def execution(digits: PreparedDataset, rampline_home: Path, forks: None, tmp_path: Path) -> Execution:
    study = tmp_path / "explained.yaml"
    study.write_text(STUDY)
    return begin(study, Home(root=rampline_home), f"x-{tmp_path.name}")


def logged(execution: Execution, run: str) -> tuple[dict[str, float], dict[str, str]]:
    """Metrics and tags of the run in MLflow."""
    run_id = read_json(execution.directory(run).tracking_file)["run_id"]
    data = open_tracking(Home.from_environment()).get_run(run_id).data
    return data.metrics, data.tags


@pytest.mark.slow
@pytest.mark.long
def test_what_fails_is_a_warning(
    execution: Execution, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING)
    train_run(execution, "probed", on_event=lambda event: None, log=print)
    # The network is not to be found any more: its parts are not known, what the run has measured itself is.
    with monkeypatch.context() as patch:
        patch.delenv("PYTHONPATH")
        verdicts = explain_runs(execution, ["probed", "quiet"], log=print)
    warned = [record.getMessage() for record in caplog.records if record.name == "rampline.execution"]
    assert len(warned) == 1
    assert warned[0].startswith("where a step's time goes is known in part only: a probe of one replica ")
    assert "small_models" in warned[0]
    directory = execution.directory("probed")
    explanation = Explanation.read(directory.explanation_file)
    assert verdicts == {"probed": explanation.verdict.sentence}
    assert explanation.ceiling_images_per_second is None
    assert explanation.step.input + explanation.step.compute == pytest.approx(explanation.step.total)
    metrics, tags = logged(execution, "probed")
    assert metrics["step_ms_compute"] == explanation.step.compute
    assert (tags["rampline.verdict"], tags["rampline.bound"]) == (
        explanation.verdict.sentence,
        explanation.verdict.bound,
    )

    # Once it is there again, the rest is measured; a store that is away gets it later.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:////{tmp_path}/nowhere/mlflow.db")
    caplog.clear()
    explain_runs(execution, ["probed"], log=print)
    assert directory.replica_file.is_file()
    assert (Explanation.read(directory.explanation_file).ceiling_images_per_second or 0) > 0
    warned = [record.getMessage() for record in caplog.records if record.name == "rampline.execution"]
    assert [text.partition(": ")[0] for text in warned] == ["probed"]
    assert "MLflow has not got the explanation yet" in warned[0]
    assert is_undelivered(directory.path)
