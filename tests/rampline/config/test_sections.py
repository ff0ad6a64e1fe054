"""Every value that is not allowed gives one line with the field, the value and what is allowed."""

import math
import re
from datetime import date

import pytest

from rampline.config import (
    BatchConfig,
    ClusterConfig,
    DataConfig,
    LearningRateConfig,
    LossConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    StopConfig,
)
from rampline.errors import ConfigError

SOURCES = "one of digits, tfds:NAME, folder:PATH, url:URL, csv:PATH"
AT_LEAST_1 = "a whole number of at least 1"
AT_LEAST_0 = "a whole number of at least 0"
MODELS = "one of convnet, convnet1, convnet7, a keras.applications name such as MobileNetV2, package.module:function"
WEIGHTS = "one of none, imagenet, the path of a .h5 weight file, the path of a .keras file, "
WEIGHTS += "the path of a checkpoint folder, run:NAME"
LISTED = "a list of these and of image layers of Keras, such as [flip, {MixUp: {alpha: 0.2}}]"
AUGMENT = f"none, flip, crop, flip_crop or {LISTED}"
FRACTION = "a number greater than 0 and less than 1"
SHARE = "a number greater than 0 and at most 1 or null"

WRONG = [
    (DataConfig, "data.source", "", SOURCES),
    (DataConfig, "data.source", 5, SOURCES),
    (DataConfig, "data.source", "folder:", SOURCES),
    (DataConfig, "data.manual_dir", "/data", "left out unless data.source is tfds:NAME"),
    (DataConfig, "data.image_size", 7, "a whole number of at least 8"),
    (DataConfig, "data.image_size", 28.0, "a whole number of at least 8"),
    (DataConfig, "data.channels", 2, "1, 3 or null"),
    (DataConfig, "data.channels", True, "1, 3 or null"),
    (DataConfig, "data.limit", True, f"{AT_LEAST_1} or null"),
    (DataConfig, "data.validation_fraction", 0, FRACTION),
    (DataConfig, "data.validation_fraction", 1, FRACTION),
    (DataConfig, "data.validation_fraction", math.nan, FRACTION),
    (DataConfig, "data.split_seed", -1, AT_LEAST_0),
    (DataConfig, "data.max_undecodable_share", 1.5, "a number at least 0 and at most 1"),
    (DataConfig, "data.cache", "ram", "one of none, memory, disk, auto"),
    (DataConfig, "data.prefetch", "on", f"auto, off or {AT_LEAST_1}"),
    (DataConfig, "data.prefetch", 0, f"auto, off or {AT_LEAST_1}"),
    (DataConfig, "data.augment", "rotate", AUGMENT),
    (DataConfig, "data.augment", [5], AUGMENT),
    (DataConfig, "data.augment", [{"MixUp": {}, "CutMix": {}}], AUGMENT),
    (DataConfig, "data.augment", [{"MixUp": {"alpha": date(2026, 1, 1)}}], AUGMENT),
    (ModelConfig, "model.options", {"alpha": math.inf}, "a mapping of names to plain values"),
    (ModelConfig, "model.name", "", MODELS),
    (ModelConfig, "model.weights", None, WEIGHTS),
    (ModelConfig, "model.trainable", "backbone", f"all, head or {AT_LEAST_1}"),
    (ModelConfig, "model.batch_norm", "off", "one of train, frozen"),
    (ModelConfig, "model.head_units", -1, AT_LEAST_0),
    (ModelConfig, "model.dropout", 1, "a number at least 0 and less than 1"),
    (BatchConfig, "batch.size", 0, AT_LEAST_1),
    (BatchConfig, "batch.per", "worker", "one of replica, global"),
    (LearningRateConfig, "learning_rate.schedule", "linear", "one of constant, ramp, steps, cosine"),
    (LearningRateConfig, "learning_rate.start", -0.1, "a number at least 0"),
    (LearningRateConfig, "learning_rate.peak", 0, "a number greater than 0"),
    (LearningRateConfig, "learning_rate.peak", math.inf, "a number greater than 0"),
    (LearningRateConfig, "learning_rate.peak", 10**400, "a number greater than 0"),
    (LearningRateConfig, "learning_rate.ramp_epochs", -1, "a number at least 0"),
    (LearningRateConfig, "learning_rate.decay", 0, "a number greater than 0 and at most 1"),
    (LearningRateConfig, "learning_rate.step_epochs", 3, "a list of rising numbers greater than 0"),
    (LearningRateConfig, "learning_rate.step_epochs", (3, 3), "a list of rising numbers greater than 0"),
    (LearningRateConfig, "learning_rate.scale_with", "batch", "one of none, replicas, global_batch"),
    (LearningRateConfig, "learning_rate.base_batch_size", 0, AT_LEAST_1),
    (OptimizerConfig, "optimizer.name", "adagrad", "one of adam, adamw, sgd, rmsprop"),
    (OptimizerConfig, "optimizer.momentum", 1, "a number at least 0 and less than 1"),
    (OptimizerConfig, "optimizer.weight_decay", -1e-4, "a number at least 0"),
    (OptimizerConfig, "optimizer.clipnorm", 0, "a number greater than 0 or null"),
    (OptimizerConfig, "optimizer.ema", 1, "a number greater than 0 and less than 1 or null"),
    (LossConfig, "loss.label_smoothing", 1, "a number at least 0 and less than 1"),
    (DataConfig, "data.class_weights", "even", "one of none, balanced"),
    (StopConfig, "stop.target_accuracy", 0, SHARE),
    (StopConfig, "stop.target_accuracy", 95, SHARE),
    (StopConfig, "stop.patience", 0, f"{AT_LEAST_1} or null"),
    (StopConfig, "stop.max_minutes", 0, "a number greater than 0 or null"),
    (StopConfig, "stop.max_cost_usd", -1, "a number greater than 0 or null"),
    (ClusterConfig, "cluster.replicas", 0, f"auto or {AT_LEAST_1}"),
    (ClusterConfig, "cluster.workers", -1, AT_LEAST_1),
    (ClusterConfig, "cluster.parameter_servers", -1, AT_LEAST_0),
    (ClusterConfig, "cluster.virtual_devices", "two", f"auto or {AT_LEAST_0}"),
    (ClusterConfig, "cluster.machine", "", "a non-empty text or null"),
    (ClusterConfig, "cluster.machines", 0, AT_LEAST_1),
    (ClusterConfig, "cluster.rendezvous_timeout_seconds", 0, AT_LEAST_1),
    (ClusterConfig, "cluster.run_timeout_seconds", 0, f"{AT_LEAST_1} or null"),
    (ClusterConfig, "cluster.price_per_hour", -1, "a number at least 0 or null"),
    (ClusterConfig, "cluster.preempted_exit_status", 256, "a whole number of at least 0 and at most 255"),
]


@pytest.mark.parametrize("section, key, value, allowed", WRONG, ids=[f"{w[1]}={str(w[2])[:12]}" for w in WRONG])
def test_a_wrong_value_is_named_with_what_is_allowed(section, key, value, allowed):
    with pytest.raises(ConfigError) as failure:
        section(**{key.partition(".")[2]: value})
    assert str(failure.value) == f"{key}={value!r} is not allowed: it must be {allowed}"
    assert failure.value.exit_status == 2


def test_a_boundary_that_is_no_number_is_named():
    with pytest.raises(ConfigError, match=r"^learning_rate\.step_epochs=0 is not allowed: .* greater than 0$"):
        LearningRateConfig(step_epochs=(0, 3))


@pytest.mark.parametrize("name", ["top_1", "top_05"])
def test_a_metric_that_is_none_is_named(name):
    message = f"metrics={name!r} is not allowed: it must be a list of top_K, such as [top_5]"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        RunConfig(metrics=("top_10", name))


@pytest.mark.parametrize("name", ["convnet", "my.models:net"])
@pytest.mark.parametrize(
    "key, value",
    [
        *(("weights", "imagenet"), ("weights", "backbone.h5"), ("trainable", "head")),
        *(("head_units", 0), ("head_units", 64), ("dropout", 0.0), ("dropout", 0.8)),
    ],
)
def test_only_a_keras_application_has_pretrained_weights_and_a_head(name, key, value):
    with pytest.raises(ConfigError) as failure:
        ModelConfig(name=name, **{key: value})
    message = str(failure.value)
    assert message.startswith(f"model.{key}={value!r} is not allowed: it must be ")
    assert message.endswith(f" for {name}: only a keras.applications model has pretrained weights and a head")


def test_what_is_allowed_at_the_edges():
    DataConfig(source="tfds:mnist", manual_dir="/data", image_size=8, channels=1, limit=1, prefetch=1)
    DataConfig(source="csv:a:b.csv", channels=3, max_undecodable_share=0, prefetch="off")
    ModelConfig(name="MobileNetV2", weights="imagenet", trainable="head", head_units=0, dropout=0)
    ModelConfig(name="convnet", weights="run:baseline")
    LearningRateConfig(peak=1, floor=1, decay=1, step_epochs=(), ramp_epochs=0)
    assert LearningRateConfig(step_epochs=(0.5, 2)).step_epochs == (0.5, 2)
    assert OptimizerConfig(ema="9e-1").ema == 0.9  # type: ignore[arg-type] # YAML's 9e-1
    StopConfig(target_accuracy=1, patience=1, max_minutes=0.5, max_cost_usd=0.01)
    ClusterConfig(run_timeout_seconds=1, price_per_hour=0)
