"""The answers that a run is scored by."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import small_models
import tensorflow as tf
from role_functions import reset_keras
from runs import make_config
from scipy.special import softmax

from rampline.data.dataset import PreparedDataset
from rampline.errors import ConfigError
from rampline.record.checkpoints import Progress
from rampline.record.run_directory import RunDirectory, RunIdentity
from rampline.registry.candidate import Predictions
from rampline.training import evaluation
from rampline.training.checkpoint import restore_newest, save_checkpoint
from rampline.training.state import make_state


def test_a_batch_that_memory_does_not_take_is_halved(digits: PreparedDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    model, split = small_models.large(digits.image_shape, len(digits.class_names)), digits.evaluation_split
    assert digits.splits[split] > 28
    monkeypatch.setattr(evaluation, "BATCH_SIZE", 14)
    labels, logits = evaluation.predict(model, digits, split)
    # There is memory for 14 examples at once.
    monkeypatch.setattr(evaluation, "BATCH_SIZE", 28)
    again, in_halves = evaluation.predict(model, digits, split)
    np.testing.assert_array_equal(again, labels)
    np.testing.assert_array_equal(in_halves, logits)
    reset_keras()


@pytest.mark.parametrize(
    ("model", "own"), [("convnet", ["top_3"]), ("compiled_models:with_everything", ["top3", "f1", "margin"])]
)
def test_a_runs_own_metrics_are_those_of_the_scored_checkpoint(
    digits: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, own: list[str]
) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))
    monkeypatch.setattr(evaluation, "BATCH_SIZE", 50)  # does not divide the split
    config = dataclasses.replace(make_config("single", model=model), metrics=("top_3",))
    directory = RunDirectory(tmp_path / "runs" / "test" / "e1" / "run")
    directory.create(config, RunIdentity(study="test", name="run", dataset=str(digits.directory)))
    state = make_state(config, digits, tf.distribute.get_strategy())
    plain = keras.optimizers.SGD()  # averages of weights begin with the first step
    plain.build(state.model.trainable_variables)
    checkpoint = save_checkpoint(directory.checkpoints, Progress(step=1, epoch=1), state.model, plain)
    scores = evaluation.evaluate_run_directory(directory, which="last")
    network, _ = evaluation.load_model(directory, digits, checkpoint)
    labels, logits = evaluation.predict(network, digits, digits.evaluation_split)
    better = (logits > logits[np.arange(len(labels)), labels][:, None]).sum(axis=1)
    assert scores[f"test_{own[0]}"] == pytest.approx((better < 3).mean())
    assert {f"test_{name}" for name in own} <= {*scores}
    if "f1" in own:
        assert scores["test_f1"] == pytest.approx(scores["classification_report"]["macro avg"]["f1-score"], abs=1e-6)
    reset_keras()


@pytest.mark.parametrize("model", ["with_forgotten_argument", "with_own_layer", "with_lambda", "with_noise"])
def test_a_model_that_loads_as_another_network_is_refused(digits: PreparedDataset, tmp_path: Path, model: str) -> None:
    name, directory = f"small_models:{model}", RunDirectory(tmp_path / "run")
    identity = RunIdentity(study="test", name="run", dataset=str(digits.directory))
    directory.create(make_config("single", model=name), identity)
    network = getattr(small_models, model)(digits.image_shape, len(digits.class_names))
    _, logits = evaluation.predict(network, digits, digits.evaluation_split, 20)
    assert len(logits) == 20
    if model == "with_forgotten_argument":
        with pytest.raises(ConfigError, match=f"^model.name='{name}': the saved model loads as another network: a lay"):
            evaluation._write_model(network, directory, digits, logits)
        assert not directory.model.exists()
    else:
        evaluation._write_model(network, directory, digits, logits)
        assert directory.model.is_dir()
    reset_keras()


def test_a_network_whose_code_was_edited_after_its_training_is_refused(
    digits: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path))

    def write_code(activation: str) -> None:
        def network(input_shape: tuple[int, int, int], classes: int) -> keras.Model:
            # What draws by a seed of its own has another one each time.
            layers = [keras.layers.RandomFlip(), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
            layers += [keras.layers.Dense(8, activation=activation), keras.layers.Dropout(0.1)]
            return keras.Sequential([keras.Input(input_shape, dtype="uint8"), *layers, keras.layers.Dense(classes)])

        monkeypatch.setattr(small_models, "edited", network, raising=False)

    def resume() -> None:
        state = make_state(config, digits, tf.distribute.get_strategy())
        restore_newest(directory.checkpoints, state.model, state.optimizer, warn=pytest.fail)

    write_code("tanh")
    config = make_config("single", model="small_models:edited")
    directory = RunDirectory(tmp_path / "runs" / "test" / "e1" / "run")
    directory.create(config, RunIdentity(study="test", name="run", dataset=str(digits.directory)))
    state = make_state(config, digits, tf.distribute.get_strategy())
    checkpoint = save_checkpoint(directory.checkpoints, Progress(step=1, epoch=1), state.model, state.optimizer)
    resume()  # its layers have other names: there are two of each now
    evaluation.load_model(directory, digits, checkpoint)
    write_code("relu")
    for load in (resume, lambda: evaluation.load_model(directory, digits, checkpoint)):
        with pytest.raises(ConfigError, match="the model's code has changed since, put it back or train anew"):
            load()
    reset_keras()


def test_logits_of_half_precision_are_scored_in_float32(digits: PreparedDataset) -> None:
    classes, split = len(digits.class_names), digits.evaluation_split
    dense = keras.layers.Dense(classes, kernel_initializer="zeros", dtype="mixed_float16")
    layers = [keras.layers.Rescaling(1 / 255), keras.layers.Flatten(), dense]
    model = keras.Sequential([keras.Input(digits.image_shape, dtype="uint8"), *layers])
    assert model.outputs[0].dtype == "float16"
    dense.bias.assign([40.0] + [0.0] * (classes - 1))
    labels, logits = evaluation.predict(model, digits, split)
    assert logits.dtype == np.float32
    scores = evaluation.score_answers(labels, evaluation.to_probabilities(logits), digits.class_names)
    # Each wrong answer has the least likelihood that is counted.
    assert scores["test_loss"] == pytest.approx((labels != 0).mean() * -np.log(1e-12), rel=1e-6)
    reset_keras()


def test_probabilities_take_the_place_of_the_logits() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (7, 4)).astype(np.float32)
    expected = softmax(logits, axis=1)
    probabilities = evaluation.to_probabilities(logits)
    assert probabilities is logits
    np.testing.assert_allclose(probabilities, expected, rtol=1e-6)


def test_a_carriage_return_in_a_path_begins_no_row(tmp_path: Path) -> None:
    paths, file = ["plain.png", "a\rb.png", "a\r=cmd|' /C calc'!A0.png"], tmp_path / "predictions.csv"
    dataset: Any = SimpleNamespace(evaluation_split="test", paths=lambda _: paths)
    labels, probabilities = np.array([0, 1, 1]), np.array([[0.75, 0.25], [0.5, 0.5], [0.125, 0.875]], np.float32)
    evaluation._write_predictions(dataset, labels, probabilities, file)
    assert pd.read_csv(file)["path"].tolist() == paths
    assert file.read_bytes().splitlines()[1] == b'0,"plain.png",0,0,0.75'
    answers = Predictions.read(file)
    assert (answers.labels.tolist(), answers.predicted.tolist()) == ([0, 1, 1], [0, 0, 1])


def test_answers_of_an_earlier_version_are_read(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("index,path,label,prediction,probability\n0,a.png,1,0,0.75\n")
    answers = Predictions.read(tmp_path / "predictions.csv")
    assert (answers.labels.tolist(), answers.predicted.tolist()) == ([1], [0])
