"""`rampline evaluate --data`: other images with labels, scored with a run that was trained before."""

import shutil
from pathlib import Path

import numpy as np
import pytest
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

pytestmark = pytest.mark.slow


def test_every_image_of_a_folder_is_scored(trained: Path, rampline_home: Path, tmp_path: Path) -> None:
    """The run's own test images but those of the digit 3, as files: the score is that of the run on these images.

    The run was trained on 40 images per class: that limit is none of these images.
    """
    run, home = RunDirectory(trained / "better"), Home(root=rampline_home)
    dataset = PreparedDataset.open(Path(run.read_identity().dataset))
    table, labels = np.genfromtxt(run.path / "predictions.csv", delimiter=",", names=True), dataset.labels("test")
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
