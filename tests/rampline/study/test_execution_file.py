"""`execution.json`: an execution is continued as it was started."""

import dataclasses
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from rampline.config import ModelConfig, RunConfig
from rampline.data.dataset import FORMAT_VERSION, PreparedDataset
from rampline.errors import InputError
from rampline.files import write_json
from rampline.record.checkpoints import Manifest, Progress, write_manifest
from rampline.record.home import Home
from rampline.record.run_directory import RunIdentity
from rampline.study import StudyRun, load_study
from rampline.study.execution_file import (
    Execution,
    at_hand,
    began_at,
    current_execution,
    find_executions,
    new_execution,
    resolve_weights,
)
from rampline.study.preflight import check_study


def test_an_execution_is_read_back_with_its_overrides(tmp_path):
    study = load_study("digits", overrides={"epochs": "2", "data.limit": "30"})
    published = dataclasses.replace(study.runs[0], published={"test_accuracy": 0.97}, train_examples=300)
    about = {"teaches": "all", "hardware": "any", "expected_hours": "1", "published_source": "a book"}
    wishes = {"prices": {"box": 1.5}, "deadline_hours": 3.5, "accuracy_tolerance": 0.02}
    study = dataclasses.replace(study, runs=(published, *study.runs[1:]), **about, **wishes)
    home = Home(root=tmp_path / "home")
    execution = Execution(folder=tmp_path / "e1", study=study, home=home, parent_run_id="0123abcd")
    assert not execution.is_begun
    execution.write()
    assert execution.is_begun
    found = Execution.open(tmp_path / "e1")
    assert found == execution
    assert {(run.config.epochs, run.config.data.limit) for run in found.study.runs} == {(2, 30)}
    content = json.loads((tmp_path / "e1" / "execution.json").read_text())
    assert (content["version"], content["parent_run_id"]) == (2, "0123abcd")


def test_executions_and_tables_of_one_second_have_a_name_each(monkeypatch):
    monkeypatch.setattr(time, "strftime", lambda *_: "20260101-000000")
    assert new_execution() != new_execution()


def test_an_execution_without_a_version_is_read_and_one_of_a_newer_rampline_refused(tmp_path):
    home = Home(root=tmp_path)
    execution = Execution(folder=tmp_path, study=load_study("digits"), home=home, parent_run_id="0123abcd")
    execution.write()
    file = tmp_path / "execution.json"
    content = json.loads(file.read_text())
    del content["version"]
    file.write_text(json.dumps(content))
    assert Execution.open(tmp_path) == execution
    file.write_text(json.dumps({"version": 3, "whatever": "comes"}))
    with pytest.raises(InputError) as failure:
        Execution.open(tmp_path)
    assert str(failure.value) == f"{file} was written by a newer rampline (version 3); this one reads 2: upgrade"


def test_a_folder_without_the_file_is_no_execution(tmp_path):
    with pytest.raises(InputError) as failure:
        Execution.open(tmp_path)
    assert str(failure.value) == f"{tmp_path} is no execution: it has no execution.json"


def test_a_copied_home_is_worked_in_where_it_is(tmp_path):
    home, folder = Home(root=tmp_path / "home"), Path("runs", "digits", "e1")
    execution = Execution(folder=home.root / folder, study=load_study("digits"), home=home)
    execution.write()
    data, elsewhere = home.data / "digits-1", tmp_path / "digits-2"
    for name, dataset in (("baseline", data), ("mirrored-ramp", elsewhere)):
        dataset.mkdir(parents=True)
        execution.directory(name).create(RunConfig(), RunIdentity(study="digits", name=name, dataset=str(dataset)))
    shutil.copytree(home.root, tmp_path / "copy")
    found = Execution.open(tmp_path / "copy" / folder)
    assert found.home.root == tmp_path / "copy"
    assert found.directory("baseline").read_identity().dataset == str(found.home.data / data.name)
    assert found.directory("mirrored-ramp").read_identity().dataset == str(elsewhere)


def test_the_latest_execution_is_the_one_that_began_last_whatever_a_copy_did_to_its_files(tmp_path):
    study, home = load_study("digits"), Home(root=tmp_path / "home")
    first, second = (Execution(folder=home.runs / "digits" / name, study=study, home=home) for name in ("b", "a"))
    first.write()
    began = began_at(first.folder)
    second.write()
    first.parent_run_id = "0123abcd"
    first.write()
    assert began_at(first.folder) == began < began_at(second.folder)
    os.utime(second.folder / "execution.json", (1, 1))
    assert Execution.latest("digits", home) == second
    assert find_executions(home) == [second.folder, first.folder]


def test_an_execution_of_an_earlier_version_began_when_its_file_says(tmp_path):
    Execution(folder=tmp_path, study=load_study("digits"), home=Home(root=tmp_path)).write()
    file = tmp_path / "execution.json"
    file.write_text(
        json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name != "began"})
    )
    os.utime(file, (7, 7))
    assert began_at(tmp_path) == 7
    Execution.open(tmp_path).write()
    assert began_at(tmp_path) == 7


def test_what_is_prepared_here_is_no_part_of_the_file(tmp_path):
    home = Home(root=tmp_path / "home")
    study = check_study(load_study("digits"), home)
    assert dict(study.datasets) == {study.runs[0].config.data: None}
    Execution(folder=tmp_path, study=study, home=home).write()
    assert "datasets" not in json.loads((tmp_path / "execution.json").read_text())["study"]
    assert Execution.open(tmp_path).study.datasets == {}


def test_data_that_was_prepared_for_a_run_that_has_not_begun_is_found_again(tmp_path):
    home, chosen = Home(root=tmp_path / "home"), ["baseline", "mirrored-ramp"]
    study = load_study("digits", only=chosen, overrides={"mirrored-ramp:data.limit": "7"})
    prepared = {data: write_dataset(home.data / f"digits-{number}") for number, data in enumerate(study.data)}
    execution = Execution(folder=tmp_path / "e1", study=dataclasses.replace(study, datasets=prepared), home=home)
    execution.write()
    assert Execution.open(tmp_path / "e1").study.datasets == prepared
    # What a run has begun with counts; a file of an earlier version names nothing else.
    first, second = study.data
    other = write_dataset(home.data / "digits-9")
    identity = RunIdentity(study="digits", name="baseline", dataset=str(other.directory))
    execution.directory("baseline").create(study.runs[0].config, identity)
    assert Execution.open(tmp_path / "e1").study.datasets == {first: other, second: prepared[second]}
    file = tmp_path / "e1" / "execution.json"
    content = json.loads(file.read_text())
    del content["datasets"]
    file.write_text(json.dumps(content))
    assert Execution.open(tmp_path / "e1").study.datasets == {first: other}


def write_dataset(directory: Path) -> PreparedDataset:
    """As far as it is opened."""
    about = {"source": "digits", "fingerprint": "f", "class_names": ["a", "b"], "image_shape": [8, 8, 1]}
    stored = {"format_version": FORMAT_VERSION, "splits": {"train": 2}, "storage": "raw_files"}
    write_json(directory / "manifest.json", {**about, **stored})
    return PreparedDataset.open(directory)


def test_an_execution_is_at_hand_in_its_block_alone(tmp_path):
    execution = Execution(folder=tmp_path / "e1", study=load_study("digits"), home=Home(root=tmp_path))
    with at_hand(execution):
        assert current_execution() is execution
    assert current_execution() is None


def test_weights_of_a_run_are_its_best_checkpoint(tmp_path):
    checkpoints = tmp_path / "baseline" / "checkpoints"
    for step in (10, 20):
        path = checkpoints / f"step-{step:08d}"
        path.mkdir(parents=True)
        progress = Progress(step=step, best_step=10)
        write_manifest(path, Manifest(variables_sha256="", progress=progress, model_variables=()))
    config = RunConfig(seed=4, model=ModelConfig(weights="run:baseline"))
    resolved = resolve_weights(StudyRun(name="tuned", config=config), tmp_path)
    assert resolved.model.weights == str(checkpoints / "step-00000010")
    assert dataclasses.replace(resolved, model=config.model) == config


@pytest.mark.parametrize("weights", ["none", "/some/checkpoint"])
def test_other_weights_stay_as_they_are(tmp_path, weights):
    config = RunConfig(model=ModelConfig(weights=weights))
    assert resolve_weights(StudyRun(name="tuned", config=config), tmp_path) is config


def test_a_run_without_a_checkpoint_has_no_weights(tmp_path):
    run = StudyRun(name="tuned", config=RunConfig(model=ModelConfig(weights="run:baseline")))
    with pytest.raises(InputError) as failure:
        resolve_weights(run, tmp_path)
    assert str(failure.value) == f"model.weights=run:baseline: run baseline of {tmp_path} has no checkpoint"
