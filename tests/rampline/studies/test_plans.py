"""The studies that come with Rampline, by what `rampline plan` prints of them: the published set-ups, to the figure.

`tests/golden/studies.txt` has their names, strategies, replicas, batches and published figures.
"""

import re

import pytest
from typer.testing import CliRunner

from rampline import devices
from rampline.cli import app
from rampline.jobs.launchers import resolve_virtual_devices
from rampline.jobs.roles import check_devices
from rampline.study import built_in_studies, load_study

STUDIES = tuple(built_in_studies())
CLASSES = ("birds", "mammals", "reptiles")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    """A machine without a GPU and without any prepared data, and a folder of animals to start in."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    for name in CLASSES:
        (tmp_path / "inaturalist/train" / name).mkdir(parents=True)
        (tmp_path / "inaturalist/train" / name / "1.jpg").write_bytes(b"read when it is prepared")
    monkeypatch.chdir(tmp_path)


def plan(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def rows(output: str) -> dict[str, dict[str, str]]:
    """The cells of the plan's table by run and column."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]
    (start,) = [number for number, cells in enumerate(lines) if cells[0] == "run"]
    head = lines[start]
    return {cells[0]: dict(zip(head, cells, strict=True)) for cells in lines[start + 2 :] if len(cells) == len(head)}


def column(table: dict[str, dict[str, str]], name: str) -> list[str]:
    return [cells[name] for cells in table.values()]


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_documented(name):
    study = load_study(name)
    assert study.name == name
    assert all((study.description, study.teaches, study.hardware, study.expected_hours))
    assert all(run.description for run in study.runs)
    assert not study.published_metrics or study.published_source
    assert all(run.train_examples for run in study.runs) == (name != "digits")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_planned_without_a_gpu_and_with_eight(name, tmp_path, monkeypatch):
    table = rows(plan(name))
    study = load_study(name)
    assert list(table) == [run.name for run in study.runs if not run.repeat_of]
    assert not (tmp_path / "home").exists()
    for number in range(8):
        folder = tmp_path / f"gpus/0000:0{number}:00.0"
        folder.mkdir(parents=True)
        (folder / "information").write_text("Model: Tesla T4\n")
    monkeypatch.setattr(devices, "NVIDIA_DRIVER", tmp_path / "gpus")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert devices.find_devices().count == 8
    for run in study.runs:
        resolved = resolve_virtual_devices(run.config)
        check_devices(resolved)
        assert resolved.cluster.virtual_devices == (2 if run.name == "mirrored-ramp" else 0)


def test_cats_vs_dogs_is_experiment_a():
    output = plan("cats_vs_dogs")
    table = rows(output)
    assert column(table, "steps per epoch") == ["582*", "582*", "291*", "291*", "146*", "1164*", "1164*", "146*"]
    assert column(table, "epochs") == ["10"] * 8
    # The peak of the ramp is four times as high on four replicas; the larger batch has no ramp.
    peaks = ["0.001", "5e-05", "0.0002", "0.0002", "0.001", "0.001", "5e-05", "0.0002"]
    assert column(table, "peak LR") == peaks
    ramp = "by epoch 5, x 0.8 per epoch down to 1e-05"
    assert f"learning rate ramp: 1e-05 to 5e-05 {ramp} (1-gpu-ft-lrs, 1-gpu-ft-lrs-text)" in output
    assert f"learning rate ramp: 1e-05 to 0.0002 {ramp} (4-gpu-ft-no-pref, 4-gpu-ft-pref, 4-gpu-ft-larg" in output
    assert "* from the 18,609 training images that the study names, not from prepared data" in output
    assert "cost is for 1 x n1-standard-8-k80x1, $0.83 per hour (1-gpu-ft, 1-gpu-ft-lrs" in output
    assert "cost is for 1 x n1-standard-16-k80x4, $2.56 per hour (4-gpu-ft-no-pref, 4-gpu-ft-pref, 4-gpu-f" in output


def test_cats_vs_dogs_trains_the_published_network_and_pipeline():
    study = load_study("cats_vs_dogs")
    assert {(run.config.model.name, run.config.engine) for run in study.runs} == {("MobileNetV2", "fit")}
    model, data = study.runs[0].config.model, study.runs[0].config.data
    assert (model.weights, model.trainable, model.head_units, model.dropout) == ("imagenet", "all", 512, 0.5)
    assert (data.source, data.image_size, data.cache) == ("tfds:cats_vs_dogs", 224, "none")
    assert data.validation_fraction == 0.2
    prefetch = ["auto", "auto", "off", "auto", "auto", "off", "off", "auto"]
    assert [run.config.data.prefetch for run in study.runs] == prefetch


def test_cassava_takes_89_steps_on_one_replica_and_45_on_two():
    output = plan("cassava")
    assert column(rows(output), "steps per epoch") == ["89*", "45*"]
    assert "* from the 5,656 training images that the study names, not from prepared data" in output
    study = load_study("cassava")
    assert {(run.config.model.name, run.config.model.head_units) for run in study.runs} == {("ResNet50", 1016)}
    assert {run.config.data.image_size for run in study.runs} == {300}
    assert [run.config.cluster.price_per_hour for run in study.runs] == [0.73, 1.08]


def test_mnist_scales_the_learning_rate_linearly_with_the_batch():
    table = rows(plan("mnist"))
    assert column(table, "steps per epoch") == ["844*", "422*", "422*", "422*", "422*"]
    assert column(table, "peak LR") == ["0.001", "0.001", "0.002", "0.001", "0.001"]
    runs = load_study("mnist").runs
    assert {run.config.model.name for run in runs} == {"convnet1"}
    assert [run.config.precision for run in runs] == ["float32", "float32", "float32", "mixed_bfloat16", "float32"]
    assert [run.config.data.cache for run in runs] == ["memory", "memory", "memory", "memory", "none"]
    assert [run.config.data.prefetch for run in runs] == ["auto", "auto", "auto", "auto", "off"]


def test_fashion_mnist_is_experiment_d():
    output = plan("fashion_mnist")
    table = rows(output)
    # 64 on each of five devices, and as many in total where there are fewer.
    assert column(table, "per-replica batch") == ["320", "320", "320", "64", "64", "160", "320"]
    assert column(table, "steps per epoch") == ["160*"] * 7
    assert column(table, "epochs") == ["10"] * 7
    # 1e-3 in epochs 0 to 2, 1e-4 in 3 to 6, 1e-5 after, for one run alone.
    assert "learning rate steps: 0.001, 0.0001 from epoch 3, 1e-05 from epoch 7 (mirrored-fit)" in output
    calls = [run.config.steps_per_call for run in load_study("fashion_mnist").runs]
    assert calls == ["auto", "auto", 1, "auto", "auto", "auto", "auto"]


def test_svhn_repeats_the_three_ways():
    assert column(rows(plan("svhn")), "steps per epoch") == ["195*"] * 3
    fashion, svhn = load_study("fashion_mnist"), load_study("svhn")
    for run in svhn.runs:
        same = fashion.run(run.name).config
        assert (run.config.learning_rate, run.config.batch) == (same.learning_rate, same.batch)
        assert run.config.cluster.replicas == same.cluster.replicas


def test_inaturalist_sweeps_replicas_and_batches():
    output = plan("inaturalist")
    table = rows(output)
    shares = ["32", "64", "16", "32", "8", "16", "4", "8"] + ["64", "128"] * 4 + ["16", "32"] + ["64", "32"]
    assert column(table, "per-replica batch") == shares
    steps = ["157*", "79*"] * 4 + ["79*", "40*", "40*", "20*", "20*", "10*", "10*", "5*"]
    assert column(table, "steps per epoch") == [*steps, "40*", "20*", "157*", "157*"]
    assert column(table, "epochs") == ["50"] * 20
    assert "* from the 5,000 or 9,999 training images that the study names" in output

    study = load_study("inaturalist")
    assert [study.run(f"2-gpu-total-64{more}").config.data.limit for more in ("", "-all")] == [500, 5000]
    assert {(run.config.model.name, run.config.data.image_size) for run in study.runs} == {("convnet7", 299)}
    assert {run.config.data.source.partition(":")[0] for run in study.runs} == {"url"}


@pytest.mark.parametrize("setting", ["data.limit=20", "data.source=folder:inaturalist", "data.validation_fraction=0.5"])
def test_steps_of_other_data_are_not_known_before_it_is_prepared(setting):
    output = plan("cassava", "--set", setting)
    assert column(rows(output), "steps per epoch") == ["?", "?"]
    assert "* from" not in output
    assert "steps per epoch: known after `rampline run` has prepared the data" in output


def test_a_study_whose_folder_is_missing_says_what_it_needs(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = CliRunner().invoke(app, ["plan", "inaturalist", "--set", "data.source=folder:inaturalist"])
    message = f"folder {tmp_path}/elsewhere/inaturalist does not exist: data.source=folder:PATH needs a folder with"
    assert message in str(result.exception)
