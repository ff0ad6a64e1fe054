"""A configuration as JSON, as dotted leaves, and from overrides."""

import json

import pytest
import yaml

from rampline.config import (
    BatchConfig,
    ClusterConfig,
    DataConfig,
    LearningRateConfig,
    RunConfig,
    apply_overrides,
    flatten,
    from_dict,
    merge,
    parse_overrides,
    to_dict,
)
from rampline.errors import ConfigError
from rampline.tracking.store import param_text

# The keys that people script against; they may grow in number, never go.
CONTRACT_BY_SECTION = {
    "": "strategy engine epochs seed precision steps_per_call",
    "data.": "source manual_dir image_size limit validation_fraction cache prefetch augment",
    "model.": "name weights trainable",
    "batch.": "size per",
    "learning_rate.": "schedule start peak floor ramp_epochs hold_epochs decay scale_with",
    "optimizer.": "name",
    "cluster.": "replicas workers parameter_servers virtual_devices",
}
CONTRACT = [section + key for section, keys in CONTRACT_BY_SECTION.items() for key in keys.split()]


def test_every_contract_key_can_be_set():
    """Set to its own default, the configuration stays what it is."""
    for key in CONTRACT:
        text = json.dumps(flatten(RunConfig())[key])
        assert from_dict(apply_overrides({}, parse_overrides([f"{key}={text}"]))) == RunConfig()


def test_json_and_back_gives_the_same_configuration():
    config = RunConfig(
        strategy="mirrored",
        seed=7,
        data=DataConfig(source="tfds:mnist", manual_dir="/m", limit=50, prefetch=4, channels=3),
        batch=BatchConfig(size=32, per="replica"),
        learning_rate=LearningRateConfig(schedule="steps", step_epochs=(1.5, 3)),
        cluster=ClusterConfig(replicas=2, virtual_devices=2, price_per_hour=1.25),
    )
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    assert from_dict({}) == RunConfig()


def test_lists_of_layers_and_options_are_leaves_that_come_back():
    overrides = parse_overrides(
        ["data.augment=[flip, {MixUp: {alpha: 0.2}}, RandAugment]", "model.options={alpha: 0.35}"]
    )
    config = from_dict(apply_overrides({"model": {"name": "MobileNetV2"}}, overrides))
    assert config.data.augmentations == (("flip", {}), ("MixUp", {"alpha": 0.2}), ("RandAugment", {}))
    assert from_dict(json.loads(json.dumps(to_dict(config)))) == config
    leaves = flatten(config)
    assert param_text(leaves["data.augment"]) == "['flip', {'MixUp': {'alpha': 0.2}}, 'RandAugment']"
    assert param_text(leaves["model.options"]) == "{'alpha': 0.35}"
    assert len({config, from_dict(to_dict(config)), RunConfig()}) == 2


@pytest.mark.parametrize(
    "values, message",
    [
        ({"epoch": 3}, "unknown key epoch: did you mean epochs?"),
        ({"model.name": "convnet"}, "unknown key model.name: here it is written as model: {name: …}"),
        ({"batch": {"sizes": 3}}, "unknown key batch.sizes: did you mean batch.size?"),
        ({"batch": {"zzz": 3}}, "unknown key batch.zzz: known: batch.size, batch.per, batch.accumulate"),
        ({"batch": 64}, "batch=64 is not allowed: it must be a mapping of keys, such as batch: {…}"),
    ],
)
def test_unknown_keys_and_wrong_sections(values, message):
    with pytest.raises(ConfigError) as failure:
        from_dict(values)
    assert str(failure.value) == message


@pytest.mark.parametrize("key", [1, "zzz"])
def test_an_unknown_key_without_a_near_one_lists_what_is_known(key):
    with pytest.raises(ConfigError, match=f"^unknown key {key}: known: strategy, engine, epochs,"):
        from_dict({key: 2})


def test_off_need_not_be_quoted():
    assert from_dict(yaml.safe_load("data: {prefetch: off}")).data.prefetch == "off"


@pytest.mark.parametrize("text, value", [("1e-3", 0.001), ("5E-4", 0.0005)])
def test_rates_may_be_written_with_an_exponent(text, value):
    overrides = {"learning_rate.peak": text}
    assert from_dict(apply_overrides({}, overrides)).learning_rate.peak == value


def test_merge_lays_sections_over_each_other():
    base = {"epochs": 5, "data": {"limit": 10, "cache": "disk"}}
    assert merge(base, {"data": {"limit": 20}}) == {"epochs": 5, "data": {"limit": 20, "cache": "disk"}}
    assert base["data"]["limit"] == 10


@pytest.mark.parametrize(
    "changes, model",
    [
        (["model.options={dropout: 0.1}"], {"name": "MobileNetV2", "options": {"alpha": 0.35, "dropout": 0.1}}),
        (["model.options={alpha: 1.0}"], {"name": "MobileNetV2", "options": {"alpha": 1.0}}),
        (["model.options={}"], {"name": "MobileNetV2", "options": {}}),
        # Whichever comes first: options of another network are no use to this one.
        (["model.name=VGG16", "model.options={pooling: max}"], {"name": "VGG16", "options": {"pooling": "max"}}),
        (["model.options={pooling: max}", "model.name=VGG16"], {"name": "VGG16", "options": {"pooling": "max"}}),
        (["model.name=MobileNet"], {"name": "MobileNet", "options": {"alpha": 0.35}}),
    ],
)
def test_options_are_laid_over_those_of_the_same_network(changes, model):
    base = {"model": {"name": "MobileNetV2", "options": {"alpha": 0.35}}}
    values = apply_overrides(base, parse_overrides(changes))
    assert values == {"model": model}


@pytest.mark.parametrize(
    "key, text, value",
    [
        ("data.source", "folder:my photos #1", "folder:my photos #1"),
        ("data.source", '"folder:quoted"', "folder:quoted"),
        ("data.group", "[a-z]+_(x)", "[a-z]+_(x)"),
        ("data.group", "'[a-z]+_(x)'", "[a-z]+_(x)"),
        ("cluster.machine", "8", "8"),
        ("cluster.machine", "null", None),
        ("strategy", "mirrored", "mirrored"),
    ],
)
def test_a_text_is_taken_as_it_is(key, text, value):
    section, _, name = key.rpartition(".")
    expected = {name: value}
    assert apply_overrides({}, {key: text}) == ({section: expected} if section else expected)


def test_overrides_are_read_as_yaml():
    overrides = parse_overrides(["epochs=2", "data.limit = 50 ", "data.manual_dir=null", "data.source=folder:/a=b"])
    values = apply_overrides({"epochs": 9, "data": {"cache": "disk"}}, overrides)
    data = {"cache": "disk", "limit": 50, "manual_dir": None, "source": "folder:/a=b"}
    assert values == {"epochs": 2, "data": data}


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("epochs", "--set 'epochs' is not allowed: it must be KEY=VALUE, such as epochs=2"),
        ("data=2", "unknown key data: "),
        ("batch.sise=2", "unknown key batch.sise: did you mean batch.size?"),
        ("epochs=[1", "--set epochs=[1 is not allowed: it must be a YAML value"),
        ("epochs=", "epochs=None is not allowed: it must be a whole number of at least 1"),
        ("seed=010", "seed='010' is not allowed: it must be a whole number of at least 0"),
        ("stop.max_minutes=1:30", "stop.max_minutes='1:30' is not allowed: it must be a number greater than 0 or null"),
        ("epochs={a: 1}", "epochs={'a': 1} is not allowed: it must be a whole number of at least 1"),
    ],
)
def test_a_wrong_override_is_one_clear_line(assignment, message):
    with pytest.raises(ConfigError) as failure:
        from_dict(apply_overrides({}, parse_overrides([assignment])))
    assert str(failure.value).startswith(message)
    assert "\n" not in str(failure.value)
