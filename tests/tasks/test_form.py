"""What the forms' parameters lead to."""

from pathlib import Path

import pytest
from prefect.exceptions import ParameterTypeError

from rampline.errors import ConfigError, InputError
from rampline.flows.finetune import finetune
from rampline.study import load_study
from rampline.tasks import form
from rampline.tasks.form import AS_IN_STUDY, find_stage, own_output, with_values


def test_a_run_is_trained_after_what_it_starts_from():
    study = load_study("digits")
    assert study.with_ancestors("mirrored-ramp") == ["baseline", "mirrored-ramp"]
    assert study.with_ancestors("parameter-server") == ["parameter-server"]


def test_a_run_of_another_strategy_is_refused():
    with pytest.raises(ConfigError, match="has strategy mirrored: the flow finetune trains it, not baseline"):
        find_stage("baseline", "digits", "mirrored-ramp", {})


def test_the_settings_of_a_form_are_not_those_of_the_runs_that_it_does_not_train(rampline_home, monkeypatch):
    monkeypatch.setattr(form, "own_name", lambda: "e1")
    for flow, run in (("baseline", "baseline"), ("finetune", "mirrored-ramp")):
        runs = find_stage(flow, "digits", run, {"engine": "fit"}).study.runs
        assert {each.config.engine for each in runs} == {"fit"}
    assert [each.name for each in runs] == ["baseline", "mirrored-ramp"]
    fresh = find_stage("finetune", "digits", "mirrored-ramp", {"mirrored-ramp:model.weights": "none"})
    assert [each.name for each in fresh.study.runs] == ["mirrored-ramp"]


def test_the_form_of_a_repeat_has_the_settings_of_its_run(rampline_home, monkeypatch, tmp_path):
    monkeypatch.setattr(form, "own_name", lambda: "e1")
    (tmp_path / "twice.yaml").write_text("runs: {one: {set: {repeats: 2}}}")
    given = with_values({}, epochs=2, **{"one-seed1:batch.size": 16})  # fields may be of that run alone
    (again,) = find_stage("baseline", str(tmp_path / "twice.yaml"), "one-seed1", given).study.runs
    assert (again.name, again.config.epochs, again.config.seed, again.config.batch.size) == ("one-seed1", 2, 1, 16)


def test_values_that_are_none_leave_the_study_as_it_is():
    assert with_values({"seed": "1"}, epochs=3, precision=AS_IN_STUDY, replicas=None) == {"seed": "1", "epochs": "3"}
    assert with_values({}, launcher=AS_IN_STUDY) == {}


def test_a_form_offers_auto_for_replicas():
    assert finetune.validate_parameters({"replicas": "auto"})["replicas"] == "auto"
    for replicas in (0, "automatic"):
        with pytest.raises(ParameterTypeError):
            finetune.validate_parameters({"replicas": replicas})
    overrides = with_values({}, **{"mirrored-ramp:cluster.replicas": "auto"})
    assert load_study("digits", overrides=overrides).run("mirrored-ramp").config.cluster.replicas >= 1


def test_the_launcher_of_a_form_is_a_setting_of_every_run():
    overrides = with_values({"cluster.launcher": "local"}, launcher="ray")
    assert {run.config.cluster.launcher for run in load_study("digits", overrides=overrides).runs} == {"ray"}


def test_a_table_is_written_below_the_predictions_of_the_home_alone(rampline_home):
    predictions = Path(rampline_home, "predictions")
    assert own_output("") == ""
    assert own_output("digits/a.csv") == own_output(f"{predictions}/digits/a.csv") == f"{predictions}/digits/a.csv"
    for output in ("/data/table.csv", "../data/table.csv", f"{predictions}/../runs/table.csv"):
        with pytest.raises(InputError, match=r"must be a path below .*/predictions, or empty"):
            own_output(output)
