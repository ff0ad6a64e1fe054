"""What `promote` lets through, what it refuses and why, and what it leaves in MLflow."""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from command_line import RAMPLINE, environment_with
from mlflow.entities import Run, RunData, RunInfo, RunTag
from mlflow.tracking import MlflowClient
from other_user import closed
from PIL import Image
from stored_data import store_here
from trained_runs import MODEL, aliases

from rampline.config import DataConfig, RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.errors import InputError
from rampline.files import locked, read_json, write_json
from rampline.jobs.waiting import wait_until
from rampline.parity.check import ParityResult, result_file
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.registry import checks
from rampline.registry.candidate import PREDICTIONS, Predictions, directory_of, images_trained_on
from rampline.registry.checks import ALL, _score, _unseen
from rampline.registry.promotion import NotPromoted, Promotion
from rampline.registry.promotion import promote as promote_run
from rampline.registry.scoring import evaluate_one

pytestmark = pytest.mark.slow


@pytest.fixture
def home(rampline_home: Path) -> Home:
    return Home(root=rampline_home)


@pytest.fixture
def promote(home: Home, trained: Path):
    """`promote("fair")` promotes a run of the trained execution."""

    def call(run: str, alias: str = "champion") -> Promotion:
        return promote_run(str(trained / run), alias=alias, home=home, log=print)

    return call


def run_id(trained: Path, run: str) -> str:
    return read_json(RunDirectory(trained / run).tracking_file)["run_id"]


def versions(client: MlflowClient) -> int:
    return len(client.search_model_versions(f"name = '{MODEL}'"))


@contextmanager
def replaced(file: Path, text: str) -> Iterator[None]:
    """The file with another content for the length of the block; one that was not there is removed again."""
    before = file.read_bytes() if file.is_file() else None
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    try:
        yield
    finally:
        file.unlink()
        if before is not None:
            file.write_bytes(before)


@contextmanager
def moved_away(path: Path) -> Iterator[None]:
    away = path.with_name(f"{path.name}-elsewhere")
    path.rename(away)
    try:
        yield
    finally:
        away.rename(path)


def test_a_better_model_takes_the_champion_s_place_and_a_worse_one_does_not(
    registry: MlflowClient, promote, trained: Path, home: Home
) -> None:
    first = promote("worse")
    assert (first.version, first.is_new, first.previous) == ("1", True, None)
    # `worse` has other test images: it is scored on those of `better` first.
    second = promote("better")
    assert (second.version, second.is_new, second.previous) == ("2", True, "1")
    assert aliases(registry) == {"champion": 2, "previous-champion": 1}

    again = promote("better")
    assert (again.version, again.is_new, versions(registry)) == ("2", False, 2)
    with pytest.raises(NotPromoted, match=r"accuracy: significantly worse .*--as challenger") as refused:
        promote("worse")
    assert refused.value.exit_status == 1
    assert aliases(registry) == {"champion": 2, "previous-champion": 1}

    challenger = promote("worse", "challenger")
    assert (challenger.version, challenger.is_new) == ("1", False)
    assert aliases(registry) == {"champion": 2, "previous-champion": 1, "challenger": 1}
    with pytest.raises(NotPromoted, match="cannot challenge itself"):
        promote("better", "challenger")

    evaluation = read_json(RunDirectory(trained / "better").evaluation_file)
    assert evaluate_one(f"models:/{MODEL}@champion", None, home=home, log=print) == evaluation
    with pytest.raises(InputError, match=f"no model {MODEL}@nobody in MLflow"):
        evaluate_one(f"{MODEL}@nobody", None, home=home, log=print)


@pytest.mark.long
def test_the_version_says_why_it_was_promoted(registry: MlflowClient, promote, trained: Path) -> None:
    promote("fair")
    promote("better")
    version = registry.get_model_version_by_alias(MODEL, "champion")
    evaluation = read_json(RunDirectory(trained / "better").evaluation_file)
    better = run_id(trained, "better")
    assert version.run_id == better
    assert str(version.source).startswith("models:/m-")
    assert version.tags["rampline.run"] == "better"
    assert float(version.tags["rampline.test_accuracy"]) == pytest.approx(evaluation["test_accuracy"], abs=1e-6)
    assert version.tags["rampline.gate"] == "run pass, parity pass, data pass, model pass, accuracy pass"
    assert version.tags["rampline.gate.champion_version"] == "1"
    assert float(version.tags["rampline.gate.difference"]) > 0
    assert len(version.tags["rampline.data_fingerprint"]) == 64
    assert "| accuracy | pass | better (champion: version 1):" in str(version.description)
    assert "rampline promote" in str(registry.get_registered_model(MODEL).description)
    files = {file.path for file in registry.list_artifacts(better, "promotion")}
    assert files == {"promotion/gate.json", "promotion/predictions.csv"}


def test_a_failed_or_missing_parity_check_is_refused(registry: MlflowClient, promote, trained: Path) -> None:
    directory, tag = RunDirectory(trained / "fair"), "rampline.parity"
    failed = ParityResult(status="fail", reason="the loss of step 1 differs by 0.5", configuration="x")
    failed.write(file := result_file(directory))
    try:
        with pytest.raises(NotPromoted, match="parity: parity fail: the loss of step 1 differs"):
            promote("fair")
        dataclasses.replace(failed, status="pass", max_loss_diff=0.0, max_weight_diff=0.0).write(file)
        registry.set_tag(run_id(trained, "fair"), tag, "fail")
        with pytest.raises(NotPromoted, match=r"parity: MLflow's tag rampline\.parity is fail"):
            promote("fair", "challenger")
        file.unlink()
        registry.delete_tag(run_id(trained, "fair"), tag)
        with pytest.raises(NotPromoted, match=r"parity: it was not checked \(parity\.steps=0\)"):
            promote("fair")
    finally:
        file.unlink(missing_ok=True)
        registry.set_tag(run_id(trained, "fair"), tag, "not_applicable")
    assert registry.search_registered_models(f"name = '{MODEL}'") == []
    assert promote("fair").is_new


def test_of_a_repeat_the_parity_of_the_first_training_counts(registry: MlflowClient, promote, trained: Path) -> None:
    repeat, tag = RunDirectory(trained / "fair"), "rampline.parity"
    identity = read_json(repeat.identity_file) | {"repeat_of": "better"}
    registry.delete_tag(run_id(trained, "fair"), tag)
    registry.set_tag(run_id(trained, "better"), tag, "fail")
    try:
        with replaced(repeat.identity_file, json.dumps(identity)):
            with pytest.raises(NotPromoted, match=r"parity: better, which it repeats: MLflow's tag .* is fail"):
                promote("fair")
            registry.set_tag(run_id(trained, "better"), tag, "not_applicable")
            assert promote("fair").is_new
    finally:
        for run in ("fair", "better"):
            registry.set_tag(run_id(trained, run), tag, "not_applicable")


@pytest.mark.usefixtures("registry")
def test_images_that_the_champion_was_trained_on_are_left_out(
    promote, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fair` and `better` as if their data had no test split, and the champion had seen some of the images."""
    promote("fair")
    seen = np.arange(len(Predictions.read(trained / "better" / PREDICTIONS).labels)) % 3 == 0
    theirs = Predictions.read(trained / "fair" / PREDICTIONS)
    monkeypatch.setattr(checks, "_champion_predictions", lambda *_: (theirs, ~seen))
    reason = promote("better").checks[-1].reason
    assert f"on the same {(~seen).sum()} images" in reason
    assert reason.endswith(f"; {seen.sum()} images are left out, because the champion was trained on them")


def test_a_folder_that_has_grown_leaves_images_to_compare_on(tmp_path: Path) -> None:
    data, home = DataConfig(source=f"folder:{tmp_path}/images", image_size=8), Home(root=tmp_path / "home")

    def grow(images: range, split_seed: int) -> PreparedDataset:
        for number in images:
            file = tmp_path / "images" / f"class{number % 2}" / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number % 256, number // 256, 7)).save(file)
        return store_here(dataclasses.replace(data, split_seed=split_seed), home)

    own = grow(range(200), 0)
    directory = RunDirectory(tmp_path / "run")
    directory.create(RunConfig(data=data), RunIdentity(study="s", name="run", dataset=str(own.directory)))
    assert _unseen(directory, own) == ALL

    little = grow(range(200, 220), 1)
    few = f"trained on [1-9]\\d* of these {little.splits['validation']}, and \\d+ others are too few .*: 60 are needed"
    with pytest.raises(InputError, match=few):
        _unseen(directory, little)

    grown = grow(range(220, 1500), 1)
    unseen, scored, trained_on = _unseen(directory, grown), grown.paths("validation"), own.paths("train")
    assert isinstance(unseen, np.ndarray)
    assert [path not in trained_on for path in scored] == list(unseen)
    assert 60 <= sum(unseen) < len(scored)
    way_out = "is gone or damaged.* put .* back, or promote with `--as challenger`"
    with moved_away(own.directory), pytest.raises(InputError, match=way_out):
        _unseen(directory, grown)


def test_a_source_is_known_by_where_it_lay_when_it_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run was trained on `folder:photos`; the working folder is another one then, which has `photos`, too."""
    home, here = Home(root=tmp_path / "home"), f"folder:{tmp_path}/a/photos"
    data = DataConfig(source="folder:photos", image_size=8, validation_fraction=0.5)
    for number in range(20):
        file = tmp_path / "a" / "photos" / f"class{number % 2}" / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 7)).save(file)
    monkeypatch.chdir(tmp_path / "a")
    own, again = (store_here(dataclasses.replace(data, split_seed=seed), home) for seed in (0, 1))
    monkeypatch.chdir(tmp_path)
    assert own.place == again.place == here

    def trained_on(source: str, place: str) -> set[str]:
        directory = RunDirectory(tmp_path / source.replace("/", "-"))
        identity = RunIdentity(study="s", name="run", dataset=str(own.directory))
        directory.create(RunConfig(data=dataclasses.replace(data, source=source)), identity)
        return images_trained_on(directory, dataclasses.replace(again, place=place))

    assert trained_on("folder:photos", here)
    assert not trained_on("folder:photos", f"folder:{tmp_path}/photos")
    # Images that were moved have the dataset that they had before.
    moved = f"folder:{tmp_path}/moved"
    assert trained_on(moved, moved)
    with moved_away(own.directory):
        assert not trained_on(moved, here)


def test_images_are_left_out_too_where_a_table_has_got_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's path of the table is relative, that of the new data is not."""
    monkeypatch.chdir(tmp_path)
    home, names = Home(root=tmp_path / "home"), [f"{number}.png" for number in range(400)]
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (number % 256, number // 256, 7)).save(name)

    def write(column: str, rows: list[str]) -> None:
        cells = (f"{name},class{number % 2}{row}" for number, (name, row) in enumerate(zip(names, rows, strict=True)))
        Path("table.csv").write_text("\n".join([f"path,label{column}", *cells]))

    data = DataConfig(source="csv:table.csv", image_size=8, validation_fraction=0.5)
    write("", [""] * 400)
    own = store_here(data, home)
    write(",split", [",test" if number % 4 < 2 else ",train" for number in range(400)])
    scored = store_here(dataclasses.replace(data, source=f"csv:{tmp_path}/table.csv"), home)
    directory = RunDirectory(tmp_path / "run")
    directory.create(RunConfig(data=data), RunIdentity(study="s", name="run", dataset=str(own.directory)))
    unseen, trained_on = _unseen(directory, scored), own.paths("train")
    assert isinstance(unseen, np.ndarray)
    assert [path not in trained_on for path in scored.paths("test")] == list(unseen)
    assert 60 <= sum(unseen) < 200
    with moved_away(own.directory):
        assert _unseen(directory, scored) == ALL


def test_who_waits_for_another_evaluation_of_the_champion_is_told(tmp_path: Path) -> None:
    directory, told = RunDirectory(tmp_path), list[str]()
    directory.other_evaluation_file.write_text('{"dataset": "data", "which": "best"}')
    directory.other_predictions_file.write_text("label,prediction\n1,2\n")
    with ThreadPoolExecutor() as pool:
        with locked(directory.evaluation_lock):
            waiting = pool.submit(_score, directory, Path("data"), told.append)
            assert wait_until(lambda: bool(told), 10)
            assert not waiting.done()
        assert waiting.result().predicted == [2]
    assert told == [f"waiting for process {os.getpid()} on {platform.node()}, which scores the champion"]


def test_a_data_report_that_is_not_clean_is_refused(registry: MlflowClient, promote, trained: Path) -> None:
    dataset = Path(RunDirectory(trained / "fair").read_identity().dataset)
    head = "group,kind,split,class,name,sha256\n"
    with (
        replaced(dataset / "undecodable.csv", "split,class,name,problem\ntrain,1,a.png,broken\n"),
        pytest.raises(NotPromoted, match="not clean: 1 files that do not decode"),
    ):
        promote("fair")
    with (
        replaced(dataset / "duplicates.csv", head + "1,across,train,1,a.png,ff\n1,across,test,1,b.png,ff\n"),
        pytest.raises(NotPromoted, match="not clean: 1 images in more than one split"),
    ):
        promote("fair", "challenger")
    with (
        replaced(dataset / "groups.csv", "group,split,images\np,train,1\np,test,1\n"),
        pytest.raises(NotPromoted, match="not clean: 1 groups in more than one split"),
    ):
        promote("fair")
    with (
        replaced(dataset / "duplicates.csv", head + "1,within,train,1,a.png,ff\n1,within,train,7,b.png,ff\n"),
        pytest.raises(NotPromoted, match="not clean: 1 images with more than one label"),
    ):
        promote("fair")
    assert registry.search_registered_models(f"name = '{MODEL}'") == []
    with replaced(dataset / "duplicates.csv", head + "1,within,train,1,a.png,ff\n1,within,train,1,b.png,ff\n"):
        assert promote("fair").checks[2].reason.endswith("1 images are more than once in one split")


@pytest.mark.usefixtures("registry")
@pytest.mark.long
def test_a_run_that_is_not_complete_is_refused_by_the_command_in_one_line(trained: Path, home: Home) -> None:
    with moved_away(RunDirectory(trained / "fair").result_file):
        command = [str(RAMPLINE), "promote", run_id(trained, "fair"), "--as", "challenger"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment_with(home.root), timeout=120, check=False
        )
    assert done.returncode == 1
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["FAIL", "run"],
        ["pass", "parity"],
        ["pass", "data"],
        ["pass", "accuracy"],
    ]
    [line] = done.stderr.splitlines()
    assert line.startswith("rampline: error: not promoted: run: training is not complete:")


@pytest.mark.long
def test_a_champion_without_its_run_directory(registry: MlflowClient, promote, trained: Path, home: Home) -> None:
    """Its answers are in MLflow: it can be compared on the same images, and cannot be scored on others."""
    promote("fair")
    with moved_away(trained / "fair"):
        with pytest.raises(InputError, match="which is not on this machine"):
            evaluate_one(f"{MODEL}@champion", None, home=home, log=print)
        with pytest.raises(NotPromoted, match=r"not compared: .*its run directory is not on this machine"):
            promote("worse")
        assert promote("better").previous == "1"
    assert aliases(registry) == {"champion": 2, "previous-champion": 1}


def test_a_run_of_a_home_that_was_moved_is_in_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    directory = RunDirectory(tmp_path / "runs" / "s" / "e" / "r")
    directory.create(RunConfig(), RunIdentity(study="s", name="r", dataset=""))
    info = RunInfo("1", "0", "me", "FINISHED", 0, 1, "active")
    run = Run(info, RunData(tags=[RunTag("rampline.run_dir", "/old/place/runs/s/e/r")]))
    write_json(directory.tracking_file, {"run_id": "1"})
    assert directory_of(run, "r") == directory
    monkeypatch.setenv("RAMPLINE_HOME", "/another/home")
    theirs = tmp_path / "theirs"
    run = Run(info, RunData(tags=[RunTag("rampline.run_dir", str(theirs / "runs" / "s" / "e" / "r"))]))
    theirs.mkdir()
    with closed(theirs), pytest.raises(InputError, match="which is not on this machine"):
        directory_of(run, "r")


def test_the_run_directory_of_a_run_is_not_another_one_of_its_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    homes = [RunDirectory(tmp_path / home / "runs" / "s" / "nightly" / "r") for home in ("here", "there")]
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "here"))
    for run_id, directory in enumerate(homes):
        directory.create(RunConfig(), RunIdentity(study="s", name="r", dataset=""))
        write_json(directory.tracking_file, {"run_id": str(run_id)})
    info = RunInfo("1", "0", "me", "FINISHED", 0, 1, "active")
    run = Run(info, RunData(tags=[RunTag("rampline.run_dir", str(homes[1].path))]))
    assert directory_of(run, "r") == homes[1]
    homes[1].tracking_file.unlink()  # the name was used again, and this training is not delivered yet
    with pytest.raises(InputError, match=r"here/runs/s/nightly/r is not that of MLflow run 1: "):
        directory_of(run, "r")


@pytest.mark.usefixtures("trained")
def test_what_is_no_run_is_wrong_input(home: Home, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run 'nosuch'"):
        promote_run("nosuch", home=home, log=print)
    with pytest.raises(InputError, match="is no run directory"):
        promote_run(str(tmp_path), home=home, log=print)
