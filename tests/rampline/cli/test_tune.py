"""`rampline tune`, as a user runs it."""

import re
import signal
from pathlib import Path

import pytest
from command_line import wait_until
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from processes import processes_of

from rampline.cli.measure import _read_run
from rampline.study import load_study
from rampline.study.yaml_file import read_overrides

SMALL = ("--set", "data.limit=20", "--set", "steps_per_call=1")


def logged_runs(home: Path) -> dict[str, list[Run]]:
    """Runs of the study's experiment by `rampline.kind`."""
    client = MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("digits")
    assert experiment is not None
    kinds: dict[str, list[Run]] = {}
    for run in client.search_runs([experiment.experiment_id]):
        kinds.setdefault(run.data.tags["rampline.kind"], []).append(run)
    return kinds


@pytest.mark.slow
@pytest.mark.usefixtures("forks", "prepared")
def test_a_run_is_tuned_and_its_trials_are_in_mlflow(rampline, home: Path) -> None:
    result = rampline("tune", "digits", "--run", "baseline", "--budget", "2", *SMALL)
    assert (result.returncode, result.stderr) == (0, "")
    before = re.search(r"^before +([\d,.]+) images/s \(([\d,.]+) to ([\d,.]+)\)$", result.stdout, re.MULTILINE)
    assert before
    low, middle, high = (float(before[part].replace(",", "")) for part in (2, 1, 3))
    assert 0 < low <= middle <= high
    kinds = logged_runs(home)
    assert set(kinds) == {"tune", "trial"}
    (parent,) = kinds["tune"]
    assert parent.data.params["batch.size"] == "32"
    assert {run.data.tags["mlflow.parentRunId"] for run in kinds["trial"]} == {parent.info.run_id}
    assert {run.info.status for runs in kinds.values() for run in runs} == {"FINISHED"}
    measured = [run for run in kinds["trial"] if run.data.tags["rampline.trial_status"] == "measured"]
    assert len(measured) == parent.data.metrics["trials"] >= 1
    assert all(run.data.metrics["ratio"] > 0 and run.data.metrics["images_per_second"] > 0 for run in measured)
    file = home / "tuning" / "digits" / "baseline.yaml"
    assert file.is_file() == ("settings " in result.stdout)
    if file.is_file():
        config = load_study("digits", overrides=read_overrides(file)).run("baseline").config
        # Nothing that may change the accuracy.
        assert (config.batch.size, config.precision, config.learning_rate.peak) == (32, "float32", 2e-3)
    assert processes_of(home, "rampline.worker") == []
    # No study was executed, and the comparison does not take the search for one.
    assert "has no execution in MLflow" in rampline("compare", "digits").stderr


@pytest.mark.long
@pytest.mark.usefixtures("prepared")
def test_an_interrupted_search_leaves_no_process_and_no_settings(command, home: Path) -> None:
    tuning = command("tune", "digits", "--run", "baseline", *SMALL)
    wait_until(lambda: bool(processes_of(home, "rampline.worker")), 120)
    tuning.send_signal(signal.SIGINT)
    assert tuning.wait(timeout=30) == 130
    assert "interrupted: no settings are written" in tuning.stdout.read()
    assert processes_of(home, "rampline.worker") == []
    assert not (home / "tuning").exists()
    assert MlflowClient(tracking_uri=f"sqlite:///{home / 'mlflow.db'}").get_experiment_by_name("digits") is None


def test_a_study_takes_the_settings_of_a_file_and_set_wins_over_it(rampline, tmp_path: Path) -> None:
    file = tmp_path / "found.yaml"
    file.write_text("baseline:batch.size: 48\nepochs: 3\n")
    result = rampline("plan", "digits", "--only", "baseline", "--overrides", str(file), "--set", "epochs=2")
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r"^ *baseline .* 48 +48 +2 ", result.stdout, re.MULTILINE)


def test_a_repeat_is_tuned_with_the_settings_given_for_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    (tmp_path / "twice.yaml").write_text(
        "runs: {one: {set: {repeats: 2}}, two: {set: {repeats: 2, model: {weights: 'run:one'}}}}"
    )
    checked, origin = _read_run(str(tmp_path / "twice.yaml"), "two-seed1", ["batch.size=16"])
    (run,) = checked.runs
    assert (run.name, run.config.batch.size, run.config.seed, origin) == ("two-seed1", 16, 1, "one-seed1")
    assert run.config.model.weights == "none"
    assert _read_run(str(tmp_path / "twice.yaml"), "one-seed1", [])[0].runs[0].name == "one-seed1"
    # What is measured of a repeat alone.
    assert checked.first_trainings == checked.runs


def test_a_run_that_starts_from_another_is_tuned_from_fresh_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    checked, origin = _read_run("digits", "mirrored-ramp", ["batch.size=16"])
    (run,) = checked.runs
    assert (run.name, run.config.model.weights, run.config.batch.size, origin) == (
        "mirrored-ramp",
        "none",
        16,
        "baseline",
    )
