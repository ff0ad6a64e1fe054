"""The studies that come with Rampline, by what `rampline plan` prints of them: the published set-ups, to the figure."""

import re

import pytest
from typer.testing import CliRunner

from rampline import devices
from rampline.cli import app
from rampline.jobs.launchers import resolve_virtual_devices
from rampline.jobs.roles import check_devices
from rampline.study import built_in_studies, load_study

STUDIES = ("cassava", "cats_vs_dogs", "digits", "fashion_mnist", "inaturalist", "mnist", "recipe", "svhn")
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


def test_all_published_experiments_are_there():
    assert tuple(built_in_studies()) == STUDIES


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
    published = ["1-gpu-ft", "1-gpu-ft-lrs", "4-gpu-ft-no-pref", "4-gpu-ft-pref", "4-gpu-ft-largerbs"]
    text = ["1-gpu-ft-text", "1-gpu-ft-lrs-text", "4-gpu-ft-largerbs-text"]
    assert list(table) == [*published, *text]
    assert column(table, "global batch") == ["32", "32", "64", "64", "128", "16", "16", "128"]
    assert column(table, "per-replica batch") == ["32", "32", "16", "16", "32", "16", "16", "32"]
    assert column(table, "steps per epoch") == ["582*", "582*", "291*", "291*", "146*", "1164*", "1164*", "146*"]
    assert column(table, "epochs") == ["10"] * 8
    # The peak of the ramp is four times as high on four replicas; the larger batch has no ramp.
    peaks = ["0.001", "5e-05", "0.0002", "0.0002", "0.001", "0.001", "5e-05", "0.0002"]
    assert column(table, "peak LR") == peaks
    devices = [cell.split()[0] for cell in column(table, "devices")]
    assert devices == ["CPU", "CPU", "4", "4", "4", "CPU", "CPU", "4"]
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
    assert [run.published.get("elapsed_seconds") for run in study.runs] == [2090, 2080, 1046, 1040, 887, *[None] * 3]
    accuracies = [0.94, 0.98, 0.98, 0.98, 0.82, None, None, None]
    assert [run.published.get("best_val_accuracy") for run in study.runs] == accuracies
    assert study.run("4-gpu-ft-largerbs").published["last_val_accuracy"] == 0.763


def test_cassava_takes_89_steps_on_one_replica_and_45_on_two():
    output = plan("cassava")
    table = rows(output)
    assert column(table, "steps per epoch") == ["89*", "45*"]
    assert column(table, "per-replica batch") == ["64", "64"]
    assert column(table, "global batch") == ["64", "128"]
    assert "* from the 5,656 training images that the study names, not from prepared data" in output
    study = load_study("cassava")
    assert {(run.config.model.name, run.config.model.head_units) for run in study.runs} == {("ResNet50", 1016)}
    assert {run.config.data.image_size for run in study.runs} == {300}
    assert [run.published for run in study.runs] == [{"epoch_seconds": 100}, {"epoch_seconds": 60}]
    assert [run.config.cluster.price_per_hour for run in study.runs] == [0.73, 1.08]


def test_mnist_scales_the_learning_rate_linearly_with_the_batch():
    table = rows(plan("mnist"))
    names = ["single", "mirrored", "mirrored-scaled-lr", "mirrored-mixed-precision", "mirrored-slow-input"]
    assert list(table) == names
    assert column(table, "global batch") == ["64", "128", "128", "128", "128"]
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
    strategies = {name: cells["strategy"] for name, cells in table.items()}
    assert strategies == {
        "single-fit": "single, fit",
        "single-loop": "single",
        "single-loop-1": "single",
        "mirrored-fit": "mirrored, fit",
        "mirrored-loop": "mirrored",
        "multi-worker": "multi worker",
        "parameter-server": "parameter server",
    }
    # 64 on each of five devices, and as many in total where there are fewer.
    assert column(table, "global batch") == ["320"] * 7
    assert column(table, "per-replica batch") == ["320", "320", "320", "64", "64", "160", "320"]
    assert column(table, "steps per epoch") == ["160*"] * 7
    assert column(table, "epochs") == ["10"] * 7
    # 1e-3 in epochs 0 to 2, 1e-4 in 3 to 6, 1e-5 after, for one run alone.
    assert "learning rate steps: 0.001, 0.0001 from epoch 3, 1e-05 from epoch 7 (mirrored-fit)" in output
    study = load_study("fashion_mnist")
    assert [run.config.steps_per_call for run in study.runs] == ["auto", "auto", 1, "auto", "auto", "auto", "auto"]
    assert {run.name: run.published for run in study.runs if run.published} == {
        "single-fit": {"elapsed_seconds": 13.603, "train_accuracy": 0.907, "val_accuracy": 0.9},
        "mirrored-fit": {"train_seconds": 25.877, "train_accuracy": 0.939},
        "mirrored-loop": {"elapsed_seconds": 39.035, "train_accuracy": 0.91, "test_accuracy": 0.893},
    }


def test_svhn_repeats_the_three_ways():
    table = rows(plan("svhn"))
    assert [cells["strategy"] for cells in table.values()] == ["single, fit", "mirrored, fit", "mirrored"]
    assert column(table, "steps per epoch") == ["195*"] * 3
    fashion, svhn = load_study("fashion_mnist"), load_study("svhn")
    for run in svhn.runs:
        same = fashion.run(run.name).config
        assert (run.config.learning_rate, run.config.batch) == (same.learning_rate, same.batch)
        assert run.config.cluster.replicas == same.cluster.replicas


def test_inaturalist_sweeps_replicas_and_batches():
    output = plan("inaturalist")
    table = rows(output)
    total = [f"{gpus}-gpu-total-{batch}" for gpus in (1, 2, 4, 8) for batch in (32, 64)]
    each = [f"{gpus}-gpu-each-{batch}" for gpus in (1, 2, 4, 8) for batch in (64, 128)]
    small = ["8-gpu-each-16", "8-gpu-each-32"]
    assert list(table) == [*total, *each, *small, "1-gpu-total-64-all", "2-gpu-total-64-all"]
    batches = ["32", "64"] * 4 + ["64", "128", "128", "256", "256", "512", "512", "1024"] + ["128", "256"] + ["64"] * 2
    assert column(table, "global batch") == batches
    shares = ["32", "64", "16", "32", "8", "16", "4", "8"] + ["64", "128"] * 4 + ["16", "32"] + ["64", "32"]
    assert column(table, "per-replica batch") == shares
    steps = ["157*", "79*"] * 4 + ["79*", "40*", "40*", "20*", "20*", "10*", "10*", "5*"]
    assert column(table, "steps per epoch") == [*steps, "40*", "20*", "157*", "157*"]
    assert column(table, "epochs") == ["50"] * 20
    assert "* from the 5,000 or 9,999 training images that the study names" in output


def test_inaturalist_has_the_published_speed_ups():
    study = load_study("inaturalist")
    assert study.reference == "1-gpu-total-64"
    assert study.deadline_hours == 3.5
    speedups = {run.name: run.published["speedup"] for run in study.runs if "speedup" in run.published}
    expected = {"2-gpu-total-64": 1.6, "4-gpu-total-64": 2.5, "8-gpu-total-64": 3, "8-gpu-each-64": 3}
    assert speedups == expected
    assert [study.run(f"2-gpu-total-64{more}").published["best_val_accuracy"] for more in ("", "-all")] == [0.45, 0.49]
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
