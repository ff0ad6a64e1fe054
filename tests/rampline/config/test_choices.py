"""What is chosen by name: every entry leads to its function, and nothing trains as something else."""

import json
import re

import pytest

from rampline.config import DataConfig, LearningRateConfig, ModelConfig, OptimizerConfig, RunConfig, flatten
from rampline.config.choices import AUGMENTATIONS, MODELS, OPTIMIZERS, SOURCES, Choice
from rampline.config.formats import keys_that_keep_epoch_time, keys_that_keep_training, known_keys
from rampline.config.learning_rate import SCALINGS, SCHEDULES
from rampline.errors import ConfigError

ENTRIES = [entry for names in (AUGMENTATIONS, MODELS, OPTIMIZERS, SOURCES) for entry in names.values() if entry.at]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.at)
def test_every_entry_leads_to_what_it_names(entry: Choice):
    loaded = entry.load()
    assert callable(loaded) if ":" in entry.at else callable(loaded.open_source)


@pytest.mark.parametrize(
    "registry, section, key",
    [
        (AUGMENTATIONS, DataConfig, "augment"),
        (OPTIMIZERS, OptimizerConfig, "name"),
        (SCHEDULES, LearningRateConfig, "schedule"),
        (SCALINGS, LearningRateConfig, "scale_with"),
    ],
)
def test_a_name_is_allowed_once_it_is_an_entry(registry, section, key, monkeypatch):
    allowed = re.escape(", ".join(registry))
    with pytest.raises(ConfigError, match=f"must be (one of )?{allowed}($| or a list of these)"):
        section(**{key: "mine"})
    monkeypatch.setitem(registry, "mine", next(iter(registry.values())))
    assert getattr(section(**{key: "mine"}), key) == "mine"
    with pytest.raises(ConfigError, match=f"must be (one of )?{allowed}, mine($| or a list of these)"):
        section(**{key: "yours"})


def test_a_network_that_is_an_entry_takes_no_pretrained_weights(monkeypatch):
    monkeypatch.setitem(MODELS, "mine", MODELS["convnet"])
    with pytest.raises(ConfigError, match=r"for mine: only a keras\.applications model has pretrained weights"):
        ModelConfig(name="mine", weights="imagenet")


def test_settings_that_keep_the_time_of_an_epoch_are_marked():
    leaves = set(flatten(RunConfig()))
    assert set(known_keys()) == leaves
    keep = keys_that_keep_epoch_time()
    assert {"epochs", "seed", "learning_rate.peak", "parity.steps", "explain.steps", "model.weights", "profile"} <= keep
    change = {"batch.size", "xla", "data.image_size", "optimizer.name", "cluster.replicas", "cluster.machine", "engine"}
    assert change <= leaves - keep
    assert json.dumps(sorted(keep)).count("cluster.") == 7


def test_settings_with_which_a_run_stays_the_same_set_up_are_marked():
    keep = keys_that_keep_training()
    same = {"repeats", "checkpoint_keep", "stop.patience", "parity.steps", "data.mirrors", "cluster.machine"}
    assert same | {"cluster.heartbeat_timeout_seconds", "profile"} <= keep
    paid = {"checkpoint_every_epochs", "log_examples", "tensorboard", "cluster.price_per_hour"}
    assert paid | {"epochs", "seed", "batch.size", "cluster.min_workers", "metrics", "xla"} <= set(known_keys()) - keep
