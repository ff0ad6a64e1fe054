"""`rampline evaluate`: other images with labels, or another checkpoint, of a run that was trained before."""

import base64
import dataclasses
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from command_line import Rampline, wait_until
from stored_data import store_here
from trained_runs import write_test_images

from rampline.data.dataset import PreparedDataset
from rampline.errors import InputError
from rampline.execution import evaluate_runs, explain_runs
from rampline.files import locked, read_json, write_json
from rampline.jobs.evaluator import run_evaluation
from rampline.record.checkpoints import best_checkpoint, read_manifest
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.registry import checks
from rampline.registry.scoring import evaluate_one
from rampline.study.execution_file import Execution
from rampline.training.checkpoint import read_checkpoint, write_checkpoint
from rampline.training.evaluation import encode_small

pytestmark = pytest.mark.slow


def test_every_image_of_a_folder_is_scored(trained: Path, rampline_home: Path, tmp_path: Path) -> None:
    """The run's own test images but those of the digit 3, as files: the score is that of the run on these images.

    The run was trained on 40 images per class: that limit is none of these images.
    """
    run, home = RunDirectory(trained / "better"), Home(root=rampline_home)
    dataset = PreparedDataset.open(Path(run.read_identity().dataset))
    table, labels = np.genfromtxt(run.path / "predictions.csv", delimiter=",", names=True), dataset.labels("test")
    _check_answers(run, dataset)
    paths = write_test_images(run, tmp_path / "images")
    for path, label in zip(paths, labels, strict=True):
        folder = tmp_path / "sorted/test" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        if label != 3:
            path.rename(folder / path.name)
            (folder / f"again-{path.name}").write_bytes((folder / path.name).read_bytes())
    (tmp_path / "sorted/test/3").rmdir()

    lines: list[str] = []
    scores = evaluate_one(str(run.path), f"folder:{tmp_path}/sorted", home=home, log=lines.append)
    chosen = table["label"] != 3
    assert scores["examples"] == 2 * chosen.sum()
    assert scores["test_accuracy"] == pytest.approx((table["label"] == table["prediction"])[chosen].mean())
    assert scores["classification_report"]["3"]["support"] == 0
    right = [(table["prediction"] == digit)[table["label"] == digit].mean() for digit in range(10) if digit != 3]
    assert scores["test_balanced_accuracy"] == pytest.approx(np.mean(right))
    assert [label for label, bounds in enumerate(scores["intervals"]["recall"]) if bounds is None] == [3]
    assert lines[-1] == f"scores      {run.path}/evaluation-other.json"
    assert lines[-2].startswith(f"test: {2 * chosen.sum()} images: 0 ({2 * (labels == 0).sum()}), ")
    assert read_json(run.evaluation_file)["examples"] == len(labels)

    (tmp_path / "sorted/test/5").rename(tmp_path / "sorted/test/five")
    with pytest.raises(InputError, match=r"has the class 'five', which the run was not trained on: it knows 0, 1, 2"):
        evaluate_one(str(run.path), f"folder:{tmp_path}/sorted", home=home, log=lines.append)


def test_images_that_the_run_was_trained_on_are_told_of(
    trained: Path, rampline_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without splits, part of which the run was trained on, is scored as a whole; its path is written anew."""
    run, home = RunDirectory(Path(shutil.copytree(trained / "better", tmp_path / "run"))), Home(root=rampline_home)
    labels = PreparedDataset.open(Path(run.read_identity().dataset)).labels("test")
    for path, label in zip(write_test_images(run, tmp_path / "images"), labels, strict=True):
        (tmp_path / "sorted" / str(label)).mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / "sorted" / str(label) / path.name)
    data = dataclasses.replace(run.read_config().data, source=f"folder:{tmp_path}/sorted", limit=None, channels=1)
    own = store_here(data, home)
    config, identity = read_json(run.config_file), read_json(run.identity_file)
    write_json(run.config_file, config | {"data": config["data"] | {"source": data.source}})
    write_json(run.identity_file, identity | {"dataset": str(own.directory)})

    lines: list[str] = []
    monkeypatch.chdir(tmp_path)
    assert evaluate_one(str(run.path), "folder:sorted", home=home, log=lines.append)["examples"] == 360
    told = f"warning: the run was trained on {own.splits['train']} of these 360 images; "
    assert [line for line in lines if "trained on" in line] == [
        f"{told}accuracy on such images is no accuracy on new ones"
    ]


def test_the_last_checkpoint_is_scored_apart(trained: Path, rampline: Rampline, tmp_path: Path) -> None:
    """Here it is one that takes each image for a 4, and is certain of it."""
    run = RunDirectory(Path(shutil.copytree(trained / "better", tmp_path / "run")))
    best = best_checkpoint(run.checkpoints)
    assert best
    progress, arrays = read_checkpoint(best)
    arrays[max(key for key in arrays if key.startswith("model/"))][4] = 1e6
    later = dataclasses.replace(progress, step=progress.step + 1000, epoch=progress.epoch + 7)
    write_checkpoint(run.checkpoints, later, arrays, read_manifest(best).model_variables, keep=9)
    own = [run.evaluation_file, run.path / "predictions.csv", run.worst_errors_file, *run.model.rglob("*.keras")]
    before = [path.read_bytes() for path in own]

    done = rampline("evaluate", str(run.path), "--checkpoint", "last")
    assert done.returncode == 0, done.stderr
    assert len(own) == 4
    assert [path.read_bytes() for path in own] == before
    scores = read_json(run.path / "evaluation-other.json")
    assert (scores["which"], scores["epoch"], scores["best_epoch"]) == ("last", later.epoch, progress.best_epoch)
    fours = (PreparedDataset.open(Path(run.read_identity().dataset)).labels("test") == 4).mean()
    assert scores["test_accuracy"] == pytest.approx(fours)
    assert scores["test_balanced_accuracy"] == pytest.approx(0.1)
    assert scores["test_calibration_error"] == pytest.approx(1 - fours)
    answers = pd.read_csv(run.path / "predictions-other.csv")
    assert set(answers["prediction"]) == {4}
    lines = done.stdout.splitlines()
    assert lines[0] == f"scores      {run.path}/evaluation-other.json"
    assert lines[1].endswith(f"(last, epoch {later.epoch})")
    assert [line.split()[0] for line in lines[6:16]] == ["0", "1", "2", "3", "5", "6", "7", "8", "9", "4"]
    assert lines[15].split()[3:7] == ["1.000", "(0.904", "to", "1.000)"]
    assert lines[18].startswith("balanced accuracy  0.1000: the mean recall")
    assert max(map(len, lines[2:])) <= 80


def test_evaluations_of_one_run_at_once_have_their_own_scores(
    trained: Path, rampline_home: Path, tmp_path: Path
) -> None:
    run = RunDirectory(Path(shutil.copytree(trained / "better", tmp_path / "run")))
    other, home = Path(RunDirectory(trained / "worse").read_identity().dataset), Home(root=rampline_home)
    with ThreadPoolExecutor() as pool:
        last = pool.submit(evaluate_one, str(run.path), None, which="last", home=home, log=print)
        champion = pool.submit(checks._score, run, other, print)
        assert last.result()["which"] == "last"
        np.testing.assert_array_equal(champion.result().labels, PreparedDataset.open(other).labels("test"))


@pytest.mark.parametrize(
    "evaluation",
    [
        partial(evaluate_runs, on_event=lambda event: None),
        partial(explain_runs, log=print),
    ],
)
def test_a_second_evaluation_of_an_execution_waits_for_the_first(
    evaluation: Callable[..., dict[str, Any]],
    trained: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    execution = Execution.open(Path(shutil.copytree(trained, tmp_path / "e1")))
    with ThreadPoolExecutor() as pool:
        with locked(execution.directory("worse").evaluation_lock):
            second = pool.submit(evaluation, execution, ["worse"])
            wait_until(lambda: f"waiting for process {os.getpid()} on " in caplog.text, 30)
            assert not second.done()
        assert set(second.result()) <= {"worse"}


def _check_answers(run: RunDirectory, dataset: PreparedDataset) -> None:
    """Answers have their paths; of the wrong ones the most certain are shown, as the network saw them."""
    answers = pd.read_csv(run.path / "predictions.csv", dtype={"path": str})
    assert answers["path"].tolist() == dataset.paths("test")
    wrong = answers.query("label != prediction").sort_values("probability", ascending=False, kind="stable")
    shown = read_json(run.worst_errors_file)
    assert 0 < len(shown) == min(len(wrong), 12)
    assert [error["path"] for error in shown] == wrong["path"].head(12).tolist()
    image = tf.io.decode_png(base64.b64decode(shown[0]["png"])).numpy()
    pixels = np.fromfile(dataset.images_file("test"), np.uint8).reshape(-1, *dataset.image_shape)
    np.testing.assert_array_equal(image, pixels[wrong.index[0]])


def test_large_images_are_shown_small() -> None:
    image = tf.constant(np.tile(np.arange(200, dtype=np.uint8)[None, :, None], (100, 1, 3)))
    small = tf.io.decode_png(encode_small(image)).numpy()
    assert small.shape == (48, 96, 3)
    assert np.abs(small[0, :, 0] - np.linspace(0.5, 198.5, 96)).max() <= 1.5


def test_a_loss_that_is_not_finite_is_null(trained: Path, rampline_home: Path, tmp_path: Path) -> None:
    run = RunDirectory(Path(shutil.copytree(trained / "better", tmp_path / "overflowing")))
    checkpoint = best_checkpoint(run.checkpoints)
    assert checkpoint
    progress, arrays = read_checkpoint(checkpoint)
    logits_bias = max(key for key in arrays if key.startswith("model/"))
    arrays[logits_bias][0] = np.inf
    write_checkpoint(run.checkpoints, progress, arrays, read_manifest(checkpoint).model_variables, keep=9)
    run_evaluation([run.path], tmp_path / "evaluation.log", on_evaluated=lambda _path: None)
    assert read_json(run.evaluation_file)["test_loss"] is None
