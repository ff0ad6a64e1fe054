"""The recipe of docs/extending.md is what was measured; the last layers of a backbone; a network of KerasHub."""

import dataclasses
import re
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import yaml
from executions import begin
from stored_data import store_here

from rampline.config import RunConfig
from rampline.data.dataset import PreparedDataset
from rampline.execution import train_run
from rampline.parity.check import ParityResult, result_file
from rampline.record.checkpoints import find_checkpoints
from rampline.record.home import Home
from rampline.study import load_study
from rampline.study.execution_file import resolve_weights
from rampline.training.checkpoint import load_model_weights
from rampline.training.models import check_own_model, make_model

PAGE = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
PYTHON, YAML = (re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) for kind in ("python", "yaml"))

# What the page has, small enough for a test, and with replicas.
SMALL = """
base:
  strategy: mirrored
  data: {source: digits, image_size: 32, channels: 3, limit: 12, cache: memory, augment: [flip, MixUp]}
  model: {weights: none, options: {alpha: 0.35}, head_units: 8}
  batch: {size: 40}
  parity: {steps: 3}
  explain: {steps: 0}
  cluster: {replicas: 2, virtual_devices: 2}
"""


def laid_over(base: dict, changes: dict) -> dict:
    merged = {
        key: laid_over(base[key], changes[key]) if isinstance(base.get(key), dict) else changes[key] for key in changes
    }
    return base | merged


def test_the_recipe_of_the_page_is_the_one_that_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "two_phases.yaml"
    file.write_text(YAML[0])
    measured = load_study("recipe")
    for run, other in zip(load_study(str(file)).runs, ("head", "augmented"), strict=True):
        found, expected = run.config, measured.run(other).config
        data = dataclasses.replace(found.data, source=expected.data.source, validation_fraction=0.2)
        assert dataclasses.replace(found, data=data, repeats=3) == expected


@pytest.mark.long
def test_only_what_is_to_be_trained_changes_in_each_phase(
    digits: PreparedDataset, rampline_home: Path, forks: None, tmp_path: Path
) -> None:
    file = tmp_path / "two_phases.yaml"
    page = laid_over(yaml.safe_load(YAML[0]), yaml.safe_load(YAML[1]))
    study = laid_over(page, yaml.safe_load(SMALL))
    for run in study["runs"].values():
        run["set"] |= {"epochs": 1}
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    home = Home(root=rampline_home)
    store_here(load_study(str(file)).data[0], home)
    execution = begin(file, home, f"x-{tmp_path.name}")
    values = {}
    for name in ("head", "last-layers"):
        train_run(execution, name, on_event=lambda event: None, log=print)
        directory = execution.directory(name)
        assert ParityResult.read(result_file(directory)).status == "pass"
        values[name] = backbone(directory.read_config(), find_checkpoints(directory.checkpoints)[-1])
    start = resolve_weights(execution.study.run("last-layers"), execution.folder)
    assert start.model.weights == str(find_checkpoints(execution.directory("head").checkpoints)[-1])
    first, last = values["head"], values["last-layers"]
    changed = [name for name in first if not np.array_equal(first[name], last[name])]
    assert changed
    assert all(name.startswith(("block_13", "block_14", "block_15", "block_16", "Conv_1")) for name in changed)
    assert not [name for name in changed if "bn" in name.lower()]


def backbone(config: RunConfig, checkpoint: Path) -> dict[str, np.ndarray]:
    """Its variables by name in a checkpoint of the run."""
    bare = dataclasses.replace(config.model, weights="none")
    model = make_model(bare, image_shape=(32, 32, 3), classes=10)
    load_model_weights(checkpoint, model)
    inner = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    return {variable.path: variable.value.numpy() for variable in inner.variables}


def test_the_backbone_of_kerashub_is_a_network_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("keras_hub")
    (tmp_path / "hub_models.py").write_text(PYTHON[0])
    monkeypatch.syspath_prepend(tmp_path)
    assert check_own_model("hub_models:resnet18", image_shape=(32, 32, 3), classes=4) == []
    sys.modules.pop("hub_models")
