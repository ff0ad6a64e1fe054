"""A model that cannot be trained as it is written is told of before its data is prepared: real processes."""

from pathlib import Path

import pytest
from stored_data import store_here

from rampline.data.dataset import PreparedDataset
from rampline.errors import ConfigError
from rampline.record.home import Home
from rampline.study import Study, load_study
from rampline.study.preflight import check_study
from rampline.training.model_contract import check_models, checked_models

pytestmark = pytest.mark.usefixtures("forks")
NETWORKS = """import keras

def logits(input_shape, classes):
    inputs = keras.Input(input_shape, dtype="uint8")
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras.Model(inputs, keras.layers.Dense(classes)(x))

def probabilities(input_shape, classes):
    model = logits(input_shape, classes)
    return keras.Model(model.inputs, keras.layers.Softmax()(model.output))

def with_a_loss(input_shape, classes):
    model = logits(input_shape, classes)
    model.compile("sgd", loss="mse")
    return model

def five(input_shape, classes):
    return logits(input_shape, 5)

def for_grey_images(input_shape, classes):
    if input_shape[-1] != 1:
        raise ValueError("one channel")
    return probabilities(input_shape, classes)
"""


def make_study(folder: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> Study:
    """With a run for each of these functions of a module in `folder`, on the data of the fixture `digits`."""
    (folder / "users_networks.py").write_text(NETWORKS)
    monkeypatch.chdir(folder)
    runs = "".join(f"  r{number}: {{set: {{model: {{name: '{name}'}}}}}}\n" for number, name in enumerate(names))
    file = folder / "own.yaml"
    file.write_text(f"name: own\nbase: {{data: {{source: digits, limit: 12, cache: memory}}}}\nruns:\n{runs}")
    return check_study(load_study(str(file)), Home.from_environment())


def test_a_softmax_is_refused_with_its_line_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    study = make_study(tmp_path, monkeypatch, "users_networks:logits", "users_networks:probabilities")
    with pytest.raises(ConfigError) as failure:
        check_models(study, log=print)
    assert str(failure.value) == (
        "model.name='users_networks:probabilities' ends in a softmax, but its loss takes logits and applies one: leave "
        f"it out ({tmp_path / 'users_networks.py'}, line 10: return keras.Model(model.inputs, "
        "keras.layers.Softmax()(model.output)))"
    )
    assert not Home.from_environment().data.exists()


def test_another_model_than_the_data_needs_is_refused(
    digits: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(digits.class_names) == 10
    message = r"model\.name='users_networks:five' must give \(batch, 10\) logits, a column per class, not "
    with pytest.raises(ConfigError, match=message):
        check_models(make_study(tmp_path, monkeypatch, "users_networks:five"), log=print)


def test_a_model_for_the_data_alone_is_checked_when_they_are_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    study = make_study(tmp_path, monkeypatch, "users_networks:for_grey_images")
    with (
        pytest.raises(ConfigError, match=r"^model\.name='users_networks:for_grey_images' ends in a softmax, "),
        checked_models(study, log=print),
    ):
        assert store_here(study.runs[0].config.data, Home.from_environment()).image_shape[-1] == 1


def test_a_layer_that_cannot_be_made_is_refused_before_anything_is_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMPLINE_HOME", str(tmp_path / "home"))
    file = tmp_path / "own.yaml"
    file.write_text("base: {data: {source: digits, augment: [flip, {RandomHue: {factor: 7}}]}}\nruns: {one: {}}\n")
    study = check_study(load_study(str(file)), Home.from_environment())
    with pytest.raises(ConfigError) as failure:
        check_models(study, log=print)
    assert str(failure.value).startswith("data.augment: RandomHue cannot be made with {'factor': 7")
    assert "\n" not in str(failure.value)
    assert not Home.from_environment().data.exists()


def test_what_a_model_is_compiled_with_is_told_of(
    digits: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(digits.class_names) == 10
    lines: list[str] = []
    names = ("users_networks:logits", "users_networks:with_a_loss")
    check_models(make_study(tmp_path, monkeypatch, *names), log=lines.append)
    (line,) = lines
    assert line == (
        "model.name='users_networks:with_a_loss' is compiled, and trains with that instead of the study's: optimizer "
        "SGD(momentum=0), learning rate 0.01, loss mse"
    )


def test_models_of_ours_need_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rampline.training.model_contract.run_without_gpu", None)
    check_models(make_study(tmp_path, monkeypatch, "convnet", "MobileNetV2"), log=print)
