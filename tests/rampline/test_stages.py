import contextlib

import pytest

from rampline.errors import ConfigError, Preempted, RunFailed
from rampline.execution import _command, closing, start_execution
from rampline.record.execution_file import read_execution
from rampline.record.home import Home
from rampline.stages import AS_IN_STUDY, datasets_of, only_of_strategy, plan_stage, with_values
from rampline.study import load_study
from rampline.tracking.store import open_tracking


def test_a_run_is_trained_after_what_it_starts_from():
    assert plan_stage("finetune", "digits", "mirrored-ramp", {}) == ["baseline", "mirrored-ramp"]
    assert plan_stage("cluster", "digits", "parameter-server", {}) == ["parameter-server"]


STUDY = """
base: {cluster: {virtual_devices: auto, machine: box}}
prices: {box: 1.5}
runs:
  one: {}
  two: {set: {strategy: mirrored, cluster: {replicas: 2}}}
  both: {set: {strategy: multi_worker, cluster: {workers: 2}}}
"""


def test_a_checked_study_has_numbers_only_also_in_its_execution(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    folder = start_execution(str(study), home=Home(root=tmp_path / "home"), name="e1")
    clusters = [run.config.cluster for run in read_execution(folder).study.runs]
    assert [(cluster.virtual_devices, cluster.price_per_hour) for cluster in clusters] == [(0, 1.5), (2, 1.5), (0, 1.5)]


def test_a_run_of_another_strategy_is_refused():
    with pytest.raises(ConfigError, match="has strategy mirrored: the flow finetune trains it, not baseline"):
        plan_stage("baseline", "digits", "mirrored-ramp", {})


def test_equal_data_is_prepared_once():
    assert len(datasets_of(load_study("digits"))) == 1


def test_values_that_are_none_leave_the_study_as_it_is():
    assert with_values({"seed": "1"}, epochs=3, precision=AS_IN_STUDY, replicas=None) == {"seed": "1", "epochs": "3"}


@pytest.mark.parametrize(
    ("error", "status", "in_mlflow"),
    [
        (None, "COMPLETE", "FINISHED"),
        (RunFailed("no"), "FAILED", "FAILED"),
        (Preempted("asked to stop"), "PREEMPTED", "KILLED"),
        (KeyboardInterrupt(), "KILLED", "KILLED"),
    ],
)
def test_an_execution_ends_as_its_block_does(tmp_path, monkeypatch, error, status, in_mlflow):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home = Home(root=tmp_path)
    folder = start_execution("digits", home=home, only=["baseline"], name="e1")
    with contextlib.suppress(RunFailed, Preempted, KeyboardInterrupt), closing(str(folder)):
        if error is not None:
            raise error
    run = open_tracking(home).get_run(read_execution(folder).parent_run_id)
    assert (run.data.tags["rampline.status"], run.info.status) == (status, in_mlflow)


def test_the_command_in_mlflow_has_no_credentials():
    overrides = {"data.source": "csv:https://me:hunter2@host/x.csv", "epochs": "2"}
    expected = "rampline run digits --only baseline --set data.source=csv:https://***@host/x.csv --set epochs=2"
    assert _command("digits", ["baseline"], overrides) == expected


def test_the_runs_of_one_strategy_with_what_they_start_from():
    assert only_of_strategy("digits", [], "mirrored") == ["baseline", "mirrored-ramp"]
    assert only_of_strategy("digits", [], "single") == ["baseline", "baseline-fit"]
    assert only_of_strategy("digits", ["baseline-fit"], "single") == ["baseline-fit"]
    assert only_of_strategy("digits", ["multi-worker"], "all") == ["multi-worker"]


def test_a_strategy_that_no_run_has_is_refused():
    with pytest.raises(ConfigError, match="digits: none of baseline has strategy mirrored"):
        only_of_strategy("digits", ["baseline"], "mirrored")
