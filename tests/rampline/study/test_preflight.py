"""What a study is after its check: resolved for this machine."""

import pytest
from executions import begin

from rampline.errors import ConfigError
from rampline.record.home import Home
from rampline.study import load_study
from rampline.study.execution_file import Execution
from rampline.study.preflight import check_study, continue_or_check, settings_differ, tell_other_settings

STUDY = """
base: {cluster: {virtual_devices: auto, machine: box}}
prices: {box: 1.5}
runs:
  one: {}
  two: {set: {strategy: mirrored, cluster: {replicas: 2}}}
  both: {set: {strategy: multi_worker, cluster: {workers: 2}}}
"""


def test_a_checked_study_has_numbers_only_also_in_its_execution(tmp_path, monkeypatch, tracked_home):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    study = tmp_path / "study.yaml"
    study.write_text(STUDY)
    folder = begin(study, tracked_home).folder
    clusters = [run.config.cluster for run in Execution.open(folder).study.runs]
    started = Execution.open(folder).study
    assert not settings_differ(started, str(study), ["one", "two", "both"], {})  # as a scheduler repeats a command
    assert settings_differ(started, str(study), ["one"], {})
    assert settings_differ(started, str(study), [], {"epochs": "9"})
    assert [(cluster.virtual_devices, cluster.price_per_hour) for cluster in clusters] == [(0, 1.5), (2, 1.5), (0, 1.5)]


def test_weights_in_the_home_folder_are_found_and_written_down_with_their_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "w.keras").touch()
    study = tmp_path / "study.yaml"
    study.write_text("runs: {one: {set: {model: {weights: ~/w.keras}}}}")
    checked = check_study(load_study(str(study)), Home(root=tmp_path / "home"))
    assert checked.runs[0].config.model.weights == str(tmp_path / "w.keras")
    assert not settings_differ(checked, str(study), ["one"], {})


def test_an_execution_that_goes_on_says_where_the_file_is_another_since(tmp_path, tracked_home):
    file, said = tmp_path / "study.yaml", []
    file.write_text(STUDY)
    begun = begin(file, tracked_home)

    def go_on() -> list[str]:
        said.clear()
        found = continue_or_check(str(file), begun.folder, tracked_home, said.append, only=[], overrides={})
        assert found.study.runs == begun.study.runs
        tell_other_settings(begun, str(file), said.append)  # as `--resume` does
        return said

    assert go_on() == []
    file.write_text(STUDY.replace("base: {", "base: {epochs: 50, "))
    line = "execution e1 continues with the settings it was started with, not those of the study's file"
    assert go_on() == [line, line]
    file.unlink()
    assert not settings_differ(begun.study, str(file), [], {})


def test_equal_data_is_looked_for_once_and_found_where_it_is_prepared(digits, rampline_home, tmp_path):
    overrides = {"data.limit": "12", "data.cache": "memory"}
    study = load_study("digits", overrides=overrides)
    here, there = (check_study(study, Home(root=home)) for home in (rampline_home, tmp_path))
    assert here.data == tuple(here.datasets)
    assert list(here.datasets.values()) == [digits]
    assert list(there.datasets.values()) == [None]


@pytest.mark.parametrize(
    ("only", "strategy", "runs"),
    [
        ([], "mirrored", ["baseline", "mirrored-ramp"]),
        ([], "single", ["baseline", "baseline-fit"]),
        (["baseline-fit"], "single", ["baseline-fit"]),
        (["multi-worker"], None, ["multi-worker"]),
    ],
)
def test_the_runs_of_one_strategy_with_what_they_start_from(only, strategy, runs):
    assert [run.name for run in load_study("digits", only=only, strategy=strategy).runs] == runs


def test_a_strategy_is_that_of_the_file_and_settings_are_for_its_runs_alone():
    # Model.fit cannot train on several processes: the other runs would be refused.
    kept = load_study("digits", strategy="single", overrides={"engine": "fit"})
    assert {run.config.engine for run in kept.runs} == {"fit"}


def test_a_strategy_that_no_run_has_is_refused():
    with pytest.raises(ConfigError, match=r"digits.*: none of baseline has strategy mirrored"):
        load_study("digits", only=["baseline"], strategy="mirrored")


def test_a_module_is_named_without_its_suffix(tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text('runs: {one: {set: {model: {name: "networks.py:network"}}}}')
    with pytest.raises(ConfigError, match=r"what is installed; a module is named without \.py$"):
        check_study(load_study(str(study)), Home(root=tmp_path / "home"))


@pytest.mark.parametrize(
    "settings, message",
    [
        (
            "data: {augment: [flip, RandomRotatio]}",
            "unknown key data.augment.RandomRotatio: did you mean data.augment.Ran",
        ),
        (
            "data: {augment: [Dense]}",
            "unknown key data.augment.Dense: an image layer of keras.layers, such as RandomRot",
        ),
        (
            "data: {augment: [{flip: {rate: 0.2}}]}",
            "data.augment.flip={'rate': 0.2} is not allowed: it must be left out for flip, which takes none",
        ),
        (
            "model: {name: mobilenet_v2}",
            "model.name='mobilenet_v2' is not known: it must be convnet, convnet1, convnet7, a keras.applications "
            "name, or package.module:function; did you mean MobileNetV2?",
        ),
        ("data: {augment: [AugMix]}", "data.augment: AugMix draws its operations in Python, once for all images: use"),
        (
            "data: {augment: [{MixUp: {alfa: 0.2}}]}",
            "unknown key data.augment.MixUp.alfa: did you mean data.augment.MixUp.alpha?",
        ),
        (
            "model: {name: MobileNetV2, options: {alpa: 0.35}}",
            "unknown key model.options.alpa: did you mean model.options.alpha?",
        ),
    ],
)
def test_a_layer_or_option_that_keras_does_not_have_is_one_line(settings, message, tmp_path):
    study = tmp_path / "study.yaml"
    study.write_text(f"runs: {{one: {{set: {{{settings}}}}}}}")
    with pytest.raises(ConfigError) as failure:
        check_study(load_study(str(study)), Home(root=tmp_path / "home"))
    assert str(failure.value).startswith(f"run one: {message}")
