"""Scores of a run's best or last checkpoint on a test set; runs in a TensorFlow process, on one device.

The answers give a confusion matrix, scores per class, calibration, and intervals of them.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from rampline.data.compiled import as_written
from rampline.data.dataset import PreparedDataset
from rampline.errors import ConfigError, DatasetError
from rampline.files import csv_cell, read_json, remove, write_json, write_text
from rampline.imports import preload
from rampline.jobs.job import EVENTS
from rampline.pipeline.batches import ReplicaRange, make_evaluation_dataset
from rampline.pipeline.examples import open_examples
from rampline.record.checkpoints import Which, best_checkpoint, last_checkpoint, read_progress
from rampline.record.events import EventWriter, finite
from rampline.record.home import Home
from rampline.record.metric import wilson_interval
from rampline.record.run_directory import RunDirectory
from rampline.training.checkpoint import check_network, load_model_weights
from rampline.training.compiled_model import read_compiled
from rampline.training.models import make_model
from rampline.training.objective import SUMS, Objective
from rampline.training.state import make_objective

BATCH_SIZE = 256
# Of the wrong answers that are shown: how many, and the longer side of their images in pixels.
MOST_ERRORS, LONGEST_SIDE = 12, 96
# Of the calibration error: bins of the certainty, all of one width.
BINS = 15
# How many images a saved model is tried on, and what rounding may change of a logit.
TRIED_IMAGES, TOLERANCE = 64, 1e-2
RESAMPLES, SEED, BOUNDS = 1000, 0, (0.025, 0.975)


def evaluate_all(folder: Path, run_directories: Sequence[str], data: str | None, which: Which) -> None:
    """The job of an evaluation: score these run directories, and tell of each as soon as it is scored."""
    events = EventWriter(folder / EVENTS)
    for path in run_directories:
        evaluate_run_directory(RunDirectory(Path(path)), Path(data) if data else None, which)
        events.write("evaluated", run_directory=path)


def evaluate_run_directory(
    run_directory: RunDirectory, other_data: Path | None = None, which: Which = "best"
) -> dict[str, Any]:
    """Score a checkpoint; of the best one on the run's own data write `evaluation.json` and what belongs to it.

    That is `predictions.csv` (path, label, answer and its probability of every image), `worst_errors.json` (the wrong
    answers that are most certain, with their images), `model/` and `model_summary.txt`. Scores of other data, or of the
    last checkpoint, go to `evaluation-other.json` and `predictions-other.csv` alone.

    `other_data` is another prepared dataset with the same classes. Returns the content of the JSON file.

    Raises:
        ConfigError: when the run has no checkpoint.
        DatasetError: when the other dataset has other classes or another image shape.
    """
    checkpoint = (best_checkpoint if which == "best" else last_checkpoint)(run_directory.checkpoints)
    if checkpoint is None:
        raise ConfigError(f"{run_directory.path} has no checkpoint to evaluate")
    own = PreparedDataset.open(Path(run_directory.read_identity().dataset))
    dataset = PreparedDataset.open(other_data) if other_data else own
    _check_same_classes(own, dataset)
    is_other = other_data is not None or which == "last"
    if not is_other:
        if _is_evaluated(run_directory, checkpoint):
            return read_json(run_directory.evaluation_file)
        preload("rampline.training.saved_model")  # MLflow: more than a second, in which the images are scored
    model, objective = load_model(run_directory, own, checkpoint)
    labels, logits = predict(model, dataset, dataset.evaluation_split)
    own_figures, tried = _own_figures(objective, labels, logits), logits[:TRIED_IMAGES].copy()
    probabilities = to_probabilities(logits)
    progress = read_progress(checkpoint)
    content = {
        "split": dataset.evaluation_split,
        "source": dataset.source,
        "dataset": dataset.directory.name,
        "checkpoint": str(checkpoint),
        "which": which,
        "epoch": progress.epoch,
        "best_epoch": progress.best_epoch,
        **finite({f"test_{name}": figure for name, figure in own_figures.items()}),
        **finite(score_answers(labels, probabilities, dataset.class_names)),
    }
    if is_other:
        scores = run_directory.other_evaluation_file
        scores.unlink(missing_ok=True)  # never beside the answers on other images
        _write_predictions(dataset, labels, probabilities, run_directory.other_predictions_file)
        write_json(scores, content)
        return content
    _write_model(model, run_directory, own, tried)
    _write_predictions(dataset, labels, probabilities, run_directory.predictions_file)
    write_json(run_directory.worst_errors_file, _worst_errors(dataset, labels, probabilities))
    write_json(run_directory.evaluation_file, content)
    return content


def load_model(
    run_directory: RunDirectory, dataset: PreparedDataset, checkpoint: Path
) -> tuple[keras.Model, Objective]:
    """The run's network with the weights of `checkpoint`, and what the run measures.

    Its pretrained weights are not needed again.

    Raises:
        ConfigError: when the network is code to import and the run directory is not one of this home, or the code has
            changed since.
    """
    config = run_directory.read_config()
    _check_import(config.model.name, run_directory.path)
    keras.backend.clear_session()
    keras.mixed_precision.set_global_policy(config.precision)
    bare = dataclasses.replace(config.model, weights="none")
    model = make_model(bare, image_shape=dataset.image_shape, classes=len(dataset.class_names))
    load_model_weights(checkpoint, model)
    check_network(checkpoint, model)
    compiled_with = read_compiled(model, name=config.model.name, classes=len(dataset.class_names))
    # Who loads the model needs no optimizer, and has no code of a user's loss.
    model.compiled, model.optimizer = False, None
    return model, make_objective(config, dataset, compiled_with)


def _check_import(name: str, run_directory: Path) -> None:
    """A run directory that came from elsewhere must not say what is imported here."""
    runs = Home.from_environment().runs
    if ":" in name and runs.resolve() not in run_directory.resolve().parents:
        raise ConfigError(
            f"{run_directory} names the model {name}, code to import, and is no run of {runs}: "
            "set RAMPLINE_HOME to the home that it was trained in"
        )


def predict(
    model: keras.Model, dataset: PreparedDataset, split: str, most: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Labels (examples,) int32 and logits (examples, classes) float32 of a split, or its first `most`, in its order.

    Where a device has no memory for a batch, in halves of it: all runs that have it are scored alike.
    """
    batch_size = BATCH_SIZE
    while True:
        try:
            return dataset.labels(split)[:most], _predict_logits(model, dataset, split, batch_size, most)
        except tf.errors.ResourceExhaustedError:
            if batch_size == 1:
                raise
            batch_size //= 2


def _predict_logits(
    model: keras.Model, dataset: PreparedDataset, split: str, batch_size: int, most: int | None
) -> np.ndarray:
    examples = dataset.splits[split] if most is None else min(most, dataset.splits[split])
    batches = make_evaluation_dataset(
        open_examples(dataset, split), total_examples=examples, batch_size=batch_size, replicas=ReplicaRange()
    )
    logits = model.predict(batches.map(as_written(lambda batch: batch["images"])), verbose=0)[:examples]
    # A user's network may give half precision, which is too coarse for a softmax.
    return logits.astype(np.float32, copy=False)


def to_probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax of logits `(examples, classes) float32`, in their place: with many classes a copy takes gigabytes."""
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits


def _own_figures(objective: Objective, labels: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    """The run's own metrics of these answers, by name; they add up over batches."""
    if objective.width == SUMS:
        return {}
    sums = np.zeros(objective.width)
    for start in range(0, len(labels), BATCH_SIZE):
        own, answers = (tf.constant(array[start : start + BATCH_SIZE]) for array in (labels, logits))
        batch = {"labels": own, "weights": tf.ones(len(own))}
        sums += objective.sums(answers, tf.zeros(len(own)), batch, tf.constant(0.0)).numpy()
    return objective.figures(sums)


def _is_evaluated(run_directory: RunDirectory, checkpoint: Path) -> bool:
    file = run_directory.evaluation_file
    if not (file.is_file() and run_directory.model.is_dir()):
        return False
    content = read_json(file)
    return content["checkpoint"] == str(checkpoint) and "intervals" in content  # which earlier versions have not found


def _check_same_classes(own: PreparedDataset, other: PreparedDataset) -> None:
    if other.class_names != own.class_names:
        expected, found = ", ".join(own.class_names), ", ".join(other.class_names)
        raise DatasetError(f"{other.source} has the classes {found}; the run was trained on {expected}")
    if other.image_shape != own.image_shape:
        raise DatasetError(
            f"{other.source} has images of {other.image_shape}; the run was trained on {own.image_shape}"
        )


def _write_predictions(dataset: PreparedDataset, labels: np.ndarray, probabilities: np.ndarray, path: Path) -> None:
    paths = dataset.paths(dataset.evaluation_split) or [""] * len(labels)
    answers = (labels, probabilities.argmax(axis=1), probabilities.max(axis=1))
    text = io.StringIO()
    # As `write_csv` does: unquoted, a carriage return in a path would begin a row.
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writerow(["index", "path", "label", "prediction", "probability"])
    writer.writerows(
        [i, csv_cell(name), *answer] for i, (name, *answer) in enumerate(zip(paths, *answers, strict=True))
    )
    write_text(path, text.getvalue())


def _worst_errors(dataset: PreparedDataset, labels: np.ndarray, probabilities: np.ndarray) -> list[dict[str, Any]]:
    """The most certain of the wrong answers, `{path, label, prediction, probability, png}`; the image as base64."""
    split, names = dataset.evaluation_split, dataset.class_names
    predicted, certainty = probabilities.argmax(axis=1), probabilities.max(axis=1)
    # A network that has overflowed is certain of nothing.
    wrong = np.flatnonzero((predicted != labels) & np.isfinite(certainty))
    worst = wrong[np.argsort(-certainty[wrong], kind="stable")][:MOST_ERRORS]
    if not len(worst):
        return []
    images, _ = open_examples(dataset, split).take(tf.constant(worst, tf.int64))
    paths = dataset.paths(split) or [f"image {index}" for index in range(len(labels))]
    return [
        {
            "path": paths[index],
            "label": names[labels[index]],
            "prediction": names[predicted[index]],
            "probability": float(certainty[index]),
            "png": base64.b64encode(encode_small(image)).decode(),
        }
        for index, image in zip(worst, images, strict=True)
    ]


def encode_small(image: tf.Tensor) -> bytes:
    """A PNG of an image (height, width, channels) uint8, reduced where it is large."""
    if max(image.shape[:2]) > LONGEST_SIDE:
        small = tf.image.resize(image, (LONGEST_SIDE,) * 2, tf.image.ResizeMethod.AREA, preserve_aspect_ratio=True)
        image = tf.cast(tf.round(small), tf.uint8)
    return tf.io.encode_png(image).numpy()


def _write_model(model: keras.Model, run_directory: RunDirectory, dataset: PreparedDataset, logits: np.ndarray) -> None:
    # Here, because no other process with TensorFlow needs MLflow.
    from rampline.training.saved_model import ModelMetadata, save_model

    name = run_directory.read_config().model.name
    save_model(model, run_directory.model, ModelMetadata.of(dataset, name))
    if ":" in name and not _loads_alike(model, run_directory.model, dataset, logits):
        remove(run_directory.model)
        raise ConfigError(
            f"model.name={name!r}: the saved model loads as another network: "
            "a layer's get_config leaves out an argument"
        )
    lines: list[str] = []
    model.summary(print_fn=lines.append, line_length=110)
    write_text(run_directory.path / "model_summary.txt", "\n".join(lines) + "\n")


def _loads_alike(model: keras.Model, saved: Path, dataset: PreparedDataset, logits: np.ndarray) -> bool:
    """Whether a saved model is the network that was scored, `logits` being the first of its answers.

    Keras makes a user's layer again from its `get_config`; an argument that is not in it has its default then.
    """

    def answers_alike(network: keras.Model) -> bool:
        _, answers = predict(network, dataset, dataset.evaluation_split, len(logits))
        return np.allclose(answers, logits, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)

    try:
        if answers_alike(keras.models.load_model(saved / "data" / "model.keras", compile=False)):
            return True
    except Exception:  # noqa: BLE001 - such as a Lambda's: the gate tells of what cannot be loaded or used
        return True
    # Answers that the network draws at random are never the same.
    return not answers_alike(model)


def score_answers(labels: np.ndarray, probabilities: np.ndarray, class_names: Sequence[str]) -> dict[str, Any]:
    """All scores, as `evaluation.json` has them, of `(examples,) int` labels and `(examples, classes) float32`.

    Among them are `test_balanced_accuracy`, the mean recall of the classes that have images; `mean_certainty`, the mean
    of the largest probability of each image; `intervals`, see `score_intervals`; `confusion_cells`, see
    `rampline.tracking.artifacts.read_confusion_matrix`. There must be at least one example.
    """
    predictions, certainty = probabilities.argmax(axis=1), probabilities.max(axis=1).astype(np.float64)
    matrix, is_right = confusion_matrix(labels, predictions, len(class_names)), predictions == labels
    likelihood = np.clip(probabilities[np.arange(len(labels)), labels], 1e-12, 1.0)
    images = matrix.sum(axis=1)
    return {
        "examples": len(labels),
        "test_loss": float(-np.log(likelihood).mean()),
        "test_accuracy": float(is_right.mean()),
        "test_balanced_accuracy": float(_ratio(matrix.diagonal(), images)[images > 0].mean()),
        "test_calibration_error": calibration_error(certainty, is_right),
        "mean_certainty": float(certainty.mean()),
        "intervals": score_intervals(matrix),
        "class_names": list(class_names),
        "confusion_cells": _cells(matrix),
        "classification_report": classification_report(matrix, class_names),
    }


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """`(classes, classes) int64`: how often each right class, a row, was taken for each, a column."""
    cells = labels.astype(np.int64) * classes + predictions
    return np.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def _cells(matrix: np.ndarray) -> list[list[int]]:
    """`[class, answer, images]` of each that is not 0: all those of 10,000 classes are a gigabyte of text."""
    classes, answers = np.nonzero(matrix)
    return np.stack([classes, answers, matrix[classes, answers]], axis=1).tolist()


def classification_report(matrix: np.ndarray, class_names: Sequence[str]) -> dict[str, Any]:
    """Precision, recall, F1 score and support by class name, their averages, and the accuracy.

    As `sklearn.metrics.classification_report(…, output_dict=True, zero_division=0)`: what would be divided by 0 is 0.
    Only where a class is called as an average is, the average has another name: `accuracy (all classes)`.
    """
    right, support = matrix.diagonal(), matrix.sum(axis=1)
    predicted = matrix.sum(axis=0)
    scores = {
        "precision": _ratio(right, predicted),
        "recall": _ratio(right, support),
        "f1-score": _ratio(2 * right, predicted + support),
    }
    examples = float(support.sum())
    by_class = {
        name: {**{score: float(values[i]) for score, values in scores.items()}, "support": float(support[i])}
        for i, name in enumerate(class_names)
    }
    macro = {score: float(values.mean()) for score, values in scores.items()}
    weighted = {score: float(np.average(values, weights=support)) for score, values in scores.items()}
    averages = {
        "accuracy": float(right.sum() / examples),
        "macro avg": {**macro, "support": examples},
        "weighted avg": {**weighted, "support": examples},
    }
    return by_class | {_free_name(name, by_class): values for name, values in averages.items()}


def _free_name(name: str, taken: Container[str]) -> str:
    while name in taken:
        name += " (all classes)"
    return name


def calibration_error(certainty: np.ndarray, is_right: np.ndarray) -> float:
    """The expected calibration error: how far certainty and accuracy are apart, weighted by images; 0 is ideal.

    Answers are sorted into 15 bins by their certainty, (0, 1/15] to (14/15, 1]; the error is the sum over the bins of
    share of the images * |accuracy - mean certainty|. Naeini et al. 2015, "Obtaining well calibrated probabilities
    using Bayesian binning"; with 15 bins as in Guo et al. 2017, "On calibration of modern neural networks".

    Args:
        certainty: `(examples,) float64`, the probability of each answer.
        is_right: `(examples,) bool`.
    """
    bins = np.digitize(certainty, np.arange(1, BINS) / BINS, right=True)
    return float(np.abs(np.bincount(bins, is_right - certainty)).sum() / len(certainty))


def score_intervals(matrix: np.ndarray) -> dict[str, Any]:
    """The 95 % intervals of scores.

    Accuracy and recalls are shares of a known number of images, and have Wilson's; the others have percentiles over
    1,000 resamples of the images (Efron 1979), with a fixed seed, and none where these do not differ.

    To resample images is to draw the cells of `matrix` from a multinomial distribution. Of a class, the scores need
    three numbers: its images, the right answers among them, and the images of other classes that are taken for it.
    These follow a multinomial and two binomial distributions: 1,000 classes are 3,000 draws, and not a million. There
    must be at least one image.

    Returns:
        `[low, high]` of `test_accuracy` and `test_balanced_accuracy`; of `precision`, `recall` and `f1-score` a list of
        them, by class, with None for a class without images, and for the precision of one that is never answered. A
        resample without images of a class says nothing of its recall. The calibration error has none: it adds up
        distances, which are larger in resamples, so that their percentiles may all lie above the error itself.
    """
    all_images = matrix.sum(axis=1)
    present = np.flatnonzero(all_images)
    images, right = all_images[present], matrix.diagonal()[present]
    mistaken, examples = matrix.sum(axis=0)[present] - right, images.sum()
    random = np.random.default_rng(SEED)
    drawn = random.multinomial(examples, images / examples, size=RESAMPLES)
    drawn_right = random.binomial(drawn, right / images)
    drawn_mistaken = random.binomial(examples - drawn, mistaken / np.maximum(examples - images, 1))
    recalls = _ratio(drawn_right, drawn, np.nan)
    by_class = {
        "precision": _ratio(drawn_right, drawn_right + drawn_mistaken, np.nan),
        "f1-score": _ratio(2 * drawn_right, drawn + drawn_right + drawn_mistaken, np.nan),
    }
    intervals: dict[str, Any] = {
        "test_accuracy": _share_interval(right.sum(), examples),
        "test_balanced_accuracy": _with_width(np.quantile(np.nanmean(recalls, axis=1), BOUNDS).tolist()),
        "recall": [_share_interval(matrix[label, label], n) if n else None for label, n in enumerate(all_images)],
    }
    for name, values in by_class.items():
        intervals[name] = [None] * len(matrix)
        is_told = ~np.isnan(values).all(axis=0)
        found = np.nanquantile(values[:, is_told], BOUNDS, axis=0).T.tolist()
        for label, bounds in zip(present[is_told], found, strict=True):
            intervals[name][label] = _with_width(bounds)
    return intervals


def _share_interval(right: int, images: int) -> list[float]:
    return list(wilson_interval(float(right / images), int(images)))


def _with_width(bounds: list[float]) -> list[float] | None:
    return bounds if bounds[0] < bounds[1] else None


def _ratio(above: np.ndarray, below: np.ndarray, otherwise: float = 0.0) -> np.ndarray:
    return np.divide(above, below, out=np.full(below.shape, otherwise), where=below > 0)
