"""`rampline evaluate --data`: other images with labels, scored with a run that was trained before."""

import base64
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from trained_runs import write_test_images

from rampline.data.dataset import PreparedDataset
from rampline.errors import InputError
from rampline.files import read_json
from rampline.jobs.evaluator import run_evaluation
from rampline.record.checkpoints import best_checkpoint, read_manifest
from rampline.record.home import Home
from rampline.record.run_directory import RunDirectory
from rampline.registry.scoring import evaluate_one
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
    assert lines[-1].startswith(f"test: {2 * chosen.sum()} images: 0 ({2 * (labels == 0).sum()}), ")
    assert read_json(run.evaluation_file)["examples"] == len(labels)

    (tmp_path / "sorted/test/5").rename(tmp_path / "sorted/test/five")
    with pytest.raises(InputError, match=r"has the class 'five', which the run was not trained on: it knows 0, 1, 2"):
        evaluate_one(str(run.path), f"folder:{tmp_path}/sorted", home=home, log=lines.append)


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
