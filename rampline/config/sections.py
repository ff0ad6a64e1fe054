"""The sections of a `RunConfig`: data, model, batch, learning rate, optimizer, loss, stop, cluster, parity, explain."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from rampline.config.choices import AUGMENTATIONS, MODELS, OPTIMIZERS, SOURCES
from rampline.config.learning_rate import SCALINGS, SCHEDULES
from rampline.config.setting import (
    Count,
    Fraction,
    Integer,
    NotNegative,
    Number,
    OneOf,
    Options,
    Positive,
    PositiveShare,
    Settings,
    Text,
    Whole,
    check,
    check_plain,
    setting,
    settings,
)
from rampline.devices import find_devices

AUTO: Final = "auto"
Cache = Literal["none", "memory", "disk", "auto"]
Launcher = Literal["local", "hand", "ray", "slurm"]
WRITTEN_SOURCES = {
    f"{name}:{source.argument}" if source.argument else name: source.about for name, source in SOURCES.items()
}
NETWORKS = {name: model.about for name, model in MODELS.items()} | {
    "a keras.applications name such as MobileNetV2": "a backbone with a head",
    "package.module:function": "a function of yours",
}
WEIGHTS = {
    "none": "weights drawn at random",
    "imagenet": "downloaded by Keras at the first use, `keras.applications` models only",
    "the path of a .h5 weight file": "weights without the top, `keras.applications` models only",
    "the path of a .keras file": "of a model with the same layers, saved by Keras; its weights alone are read",
    "the path of a checkpoint folder": "of a run with the same model",
    "run:NAME": "the best checkpoint of another run of the study",
}


def _check_source(source: str) -> str:
    kind, colon, argument = source.partition(":")
    if kind not in SOURCES or bool(SOURCES[kind].argument) != bool(argument) or bool(colon) != bool(argument):
        raise ValueError(source)
    return source


def _capture_groups(pattern: str) -> int:
    """How many a regular expression has; 0 where it is none."""
    try:
        return re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError):
        return 0


def _count_replicas(replicas: Any, info: ValidationInfo) -> Any:
    """The number for `auto`; all else is left as it is, to be checked."""
    if replicas != AUTO:
        return replicas
    virtual = info.data.get("virtual_devices")
    return len(find_devices().gpus) or (virtual if isinstance(virtual, int) else 0) or 1


Replicas = Annotated[Count, BeforeValidator(_count_replicas, json_schema_input_type=Literal["auto"] | Count)]

# The share of examples whose class is among the K most likely ones.
MetricName = Annotated[str, Field(pattern="^top_([2-9]|[1-9][0-9]+)$", strict=True)]

# YAML 1.1 reads off as false.
Prefetch = Annotated[
    Literal["auto", "off"] | Count,
    BeforeValidator(lambda value: value if value is not False else "off"),
]


def _check_layer(entry: dict[str, Any]) -> Options:
    if len(entry) != 1:
        raise ValueError(entry)
    return Options({name: check_plain(options or {}) for name, options in entry.items()})


Layer = Annotated[dict[str, dict[str, Any] | None], AfterValidator(_check_layer)]
Augmentations = Annotated[
    tuple[str | Layer, ...],
    Field(
        json_schema_extra={
            "allowed": "a list of these and of image layers of Keras, such as [flip, {MixUp: {alpha: 0.2}}]"
        }
    ),
]


@settings("data")
class DataConfig(Settings):
    """Which images, how they are prepared, and how they are fed."""

    source: Annotated[Text, AfterValidator(_check_source)] = setting("digits", "which images", allowed=WRITTEN_SOURCES)
    manual_dir: Text | None = setting(
        None,
        "folder of the files that TFDS would download, for machines without a network (`tfds:` only)",
        changes_training=False,
    )
    checksum: Annotated[str, Field(pattern="^sha256:[0-9a-fA-F]{64}$", strict=True)] | None = setting(
        None,
        "SHA-256 that the archive of `url:` must have; `null` takes what comes, and tells its checksum to be set here",
        allowed="sha256: and 64 hexadecimal digits, or null",
        changes_training=False,
    )
    mirrors: tuple[Text, ...] = setting(
        (),
        "other addresses of the archive of `url:`, tried in turn",
        allowed="a list of addresses",
        changes_training=False,
    )
    image_size: Integer = setting(
        28,
        "height and width after resizing, in pixels; the aspect ratio is not kept. A pixel is the mean of the area it "
        "covers",
        ge=8,
    )
    channels: Annotated[Whole, OneOf({1: "grey", 3: "RGB"})] | None = setting(
        None, "colours of an image; `null` keeps what the source has (`folder:` and `csv:`: 3)"
    )
    limit: Count | None = setting(None, "at most this many examples per class, in every split")
    validation_fraction: Fraction = setting(
        0.1, "share of the training images that becomes the validation split, stratified, where the source has none"
    )
    split_seed: Whole = setting(
        0,
        "seed of that split and of `limit`; apart from `seed`, so that runs with other seeds keep the same split",
    )
    group: Text | None = setting(
        None,
        "which images belong together, such as those of a patient or a burst: the split by `validation_fraction` "
        "divides no group. For `csv:` a column of the table; for `folder:` and `url:` a regular expression that is "
        "searched for in the path below the folder: the group is its first capture group that matches. `null`: every "
        "image is on its own",
        allowed="a column of the table, a regular expression with a capture group, or null",
    )
    max_undecodable_share: Number = setting(
        0.01,
        "preparation fails if a larger share of the files does not decode; up to it they are left out and listed",
        ge=0,
        le=1,
        changes_training=False,
    )
    cache: Cache = setting(
        "memory",
        "`memory`: decoded images in memory; `disk`: decoded images on disk, read per batch; `none`: original files, "
        "decoded in every epoch; `auto`: the first of these that there is room for when the data is prepared",
    )
    prefetch: Prefetch = setting(
        "auto",
        "batches prepared ahead of the training step; `off`: none, each step waits for its batch, whose images are "
        "decoded on all cores",
    )
    augment: Annotated[str, OneOf(AUGMENTATIONS)] | Augmentations = setting(
        "none",
        "what is done to training images, in this order; drawn by the position in the global batch, so that the number "
        "of replicas changes nothing",
    )
    class_weights: Literal["none", "balanced"] = setting(
        "none",
        "what the loss of a training image is multiplied by: `balanced` is images / (classes * images of its class), "
        "as in scikit-learn",
        changes_epoch_time=False,
    )

    def __post_init__(self) -> None:
        fits = self.manual_dir is None or self.source.startswith("tfds:")
        check(fits, "data.manual_dir", self.manual_dir, "left out unless data.source is tfds:NAME")
        for key, value in (("checksum", self.checksum), ("mirrors", self.mirrors)):
            fits = not value or self.source.startswith("url:")
            check(fits, f"data.{key}", value, "left out unless data.source is url:URL")
        if self.group is not None:
            kind = self.source.partition(":")[0]
            needed = "left out unless data.source is csv:PATH, folder:PATH or url:URL"
            check(kind in ("csv", "folder", "url"), "data.group", self.group, needed)
            needed = f"a regular expression with a capture group, such as '([^/]+)_', for {kind}:"
            check(kind == "csv" or _capture_groups(self.group) > 0, "data.group", self.group, needed)

    @property
    def augmentations(self) -> tuple[tuple[str, Options], ...]:
        """What is done to a training image, in this order: entries of `AUGMENTATIONS` or Keras layers, with options."""
        entries = (self.augment,) if isinstance(self.augment, str) else self.augment
        pairs = ((entry, None) if isinstance(entry, str) else next(iter(entry.items())) for entry in entries)
        return tuple((name, Options(options or {})) for name, options in pairs if name != "none")


@settings("model")
class ModelConfig(Settings):
    """Which network, and what it starts from."""

    name: Text = setting(
        "convnet",
        "the network; a name or module that is not found is refused before anything is prepared",
        allowed=NETWORKS,
    )
    weights: Text = setting("none", "what it starts from", changes_epoch_time=False, allowed=WEIGHTS)
    options: Annotated[dict[str, Any], AfterValidator(check_plain)] = setting(
        Options,
        "options of the function of `keras.applications`, such as `{alpha: 0.35}` of `MobileNetV2`",
        allowed="a mapping of names to plain values",
    )
    trainable: Literal["all", "head"] | Count = setting(
        "all",
        "`head` keeps the backbone of a `keras.applications` model as it is; a number trains the last so many layers "
        "of the backbone, and the head",
    )
    batch_norm: Literal["train", "frozen"] = setting(
        "train",
        "`frozen` keeps all BatchNormalization layers as they are, their statistics too: for fine-tuning on few images "
        "or small batches",
    )
    head_units: Whole = setting(
        512, "dense relu layer before the classifier of a `keras.applications` model; 0 for none"
    )
    dropout: Number = setting(0.5, "share of units dropped before that classifier", ge=0, lt=1)

    def __post_init__(self) -> None:
        if ":" in self.name or self.name in MODELS:
            only = f"for {self.name}: only a keras.applications model has pretrained weights and a head"
            check(self.trainable == "all", "model.trainable", self.trainable, f"all {only}")
            # Those of that head: with other values equal networks would be compared as different ones.
            check(self.head_units == ModelConfig.head_units, "model.head_units", self.head_units, f"left out {only}")
            check(self.dropout == ModelConfig.dropout, "model.dropout", self.dropout, f"left out {only}")
            check(not self.options, "model.options", self.options, f"left out for {self.name}, which takes none")
            pretrained = self.weights == "imagenet" or self.weights.endswith(".h5")
            check(
                not pretrained, "model.weights", self.weights, f"none, a .keras file, a checkpoint or run:NAME {only}"
            )


@settings("batch")
class BatchConfig(Settings):
    """Examples per step."""

    size: Count = setting(64, "examples per step")
    per: Literal["replica", "global"] = setting(
        "global", "whose examples `size` counts: those of all replicas together, or of one of them"
    )
    accumulate: Literal["auto"] | Count = setting(
        1,
        "micro-batches that a replica's share of a batch is computed in, one after the other, before one update: less "
        "memory, the same gradients (`loop` only). `auto` begins with 1 and doubles it whenever a device runs out of "
        "memory",
    )


@settings("learning_rate")
class LearningRateConfig(Settings):
    """The learning rate as a function of the step; see `rampline.config.learning_rate`."""

    schedule: Annotated[str, OneOf(SCHEDULES)] = setting(
        "constant", "the rate over the run, with `peak` as it is scaled"
    )
    start: NotNegative = setting(1e-5, "rate at the first step of `ramp` and `cosine`")
    peak: Positive = setting(1e-3, "highest rate, before `scale_with`")
    floor: NotNegative = setting(1e-6, "lowest rate after the decay of `ramp` and `cosine`; at most the scaled peak")
    ramp_epochs: NotNegative = setting(2.0, "length of the linear ramp, in epochs")
    hold_epochs: NotNegative = setting(0.0, "time at the peak, in epochs")
    decay: Number = setting(0.8, "factor per epoch (`ramp`) or per boundary (`steps`)", gt=0, le=1)
    step_epochs: tuple[Positive, ...] = setting(
        (3.0, 7.0), "boundaries of `steps`, in epochs", allowed="a list of rising numbers greater than 0"
    )
    scale_with: Annotated[str, OneOf(SCALINGS)] = setting("none", "what the peak is multiplied by")
    base_batch_size: Count = setting(256, "global batch for which `peak` was chosen (`global_batch` only)")

    def __post_init__(self) -> None:
        rising = list(self.step_epochs) == sorted(set(self.step_epochs))
        check(rising, "learning_rate.step_epochs", self.step_epochs, "a list of rising numbers greater than 0")


@settings("optimizer")
class OptimizerConfig(Settings):
    """The update rule."""

    name: Annotated[str, OneOf(OPTIMIZERS)] = setting("adam", "the Keras optimizer")
    momentum: Number = setting(0.9, "used by `sgd` and `rmsprop`", ge=0, lt=1)
    weight_decay: NotNegative = setting(0.0, "decoupled weight decay, used by all")
    clipnorm: Positive | None = setting(
        None,
        "the gradient of each variable is scaled down to this norm, after all replicas' are summed; `null` for none",
    )
    ema: Fraction | None = setting(
        None,
        "momentum of a moving average of the weights, such as 0.99 (Keras' `ema_momentum`): the averages are "
        "validated, saved and promoted, and training goes on from the weights; `null` for none",
    )


@settings("loss")
class LossConfig(Settings):
    """The cross-entropy of the logits."""

    label_smoothing: Number = setting(
        0.0,
        "share of a label that is spread over all classes, in training and validation",
        changes_epoch_time=False,
        ge=0,
        lt=1,
    )


@settings("stop")
class StopConfig(Settings):
    """What decides a run before its last epoch; whichever of these comes first."""

    target_accuracy: PositiveShare | None = setting(
        None, "the run stops after the epoch whose validation accuracy reaches this share; `null` for no target"
    )
    patience: Count | None = setting(
        None,
        "it stops after so many epochs in a row without a better validation loss, as Keras' `EarlyStopping` with "
        "`min_delta=0`; `null` for any number",
    )
    max_minutes: Positive | None = setting(
        None, "it stops after this much wall time, that of all attempts, start-up included; `null` for no limit"
    )
    max_cost_usd: Positive | None = setting(
        None,
        "it stops when its wall time has cost this much at `cluster.price_per_hour`, which must be known; `null` for "
        "no limit",
    )

    @property
    def is_set(self) -> bool:
        """Whether a run may stop before its last epoch."""
        return self != StopConfig()


@settings("cluster")
class ClusterConfig(Settings):
    """Processes and devices."""

    launcher: Launcher = setting(
        "local",
        "what starts the run's processes: `local` on this machine, `hand` the role that TF_CONFIG names, whose peers a "
        "person starts by `rampline worker`, `ray` on the nodes of a Ray cluster, `slurm` on the nodes of the job that "
        "the command is in",
    )
    # Before `replicas`, which looks at it.
    virtual_devices: Literal["auto"] | Whole = setting(
        0,
        "logical CPU devices in each process, to run several replicas without GPUs: 0, or at least `replicas`. `auto` "
        "is `replicas` for `mirrored` on a machine without a GPU, 1 for `workers` of the local launcher on one with "
        "fewer GPUs than these, else 0; the run's `config.json` and MLflow hold the number",
    )
    replicas: Replicas = setting(
        1,
        "model replicas in one process, one device each (`mirrored`, and per worker for `multi_worker`). A machine "
        "with fewer GPUs refuses, unless `virtual_devices` is set. `auto`: as many as the machine of the command has "
        "GPUs, without one as many as `virtual_devices`, else 1; `config.json` and MLflow hold the number",
    )
    workers: Count = setting(1, "worker processes (`multi_worker`, `parameter_server`)")
    min_workers: Count | None = setting(
        None,
        "a `multi_worker` run goes on with fewer workers, but at least so many, while there is no place for all, and "
        "grows again at a checkpoint; global batch, order of examples and learning rate stay those of `workers`. "
        "`null`: always all",
        changes_epoch_time=False,
    )
    sum: Literal["fast", "exact"] = setting(
        "fast",
        "how gradients of `multi_worker` are added: `fast` by TensorFlow's all-reduce; `exact` in an order that does "
        "not depend on how many workers there are: the weights have the same bits, whatever came and went (`replicas`: "
        "1)",
    )
    parameter_servers: Whole = setting(0, "processes that hold the variables (`parameter_server`: at least 1)")
    rendezvous_timeout_seconds: Count = setting(
        120, "how long the roles may take to find each other", changes_epoch_time=False, changes_training=False
    )
    run_timeout_seconds: Count | None = setting(
        None,
        "the run is ended after this long, counted from the start of each attempt; `null` for no limit",
        changes_epoch_time=False,
        changes_training=False,
    )
    max_restarts: Whole = setting(
        3,
        "how often a run that lost a role is started again from its last checkpoint",
        changes_epoch_time=False,
        changes_training=False,
    )
    heartbeat_timeout_seconds: Integer = setting(
        60,
        "a role that does not move for this long counts as frozen, and as lost",
        changes_epoch_time=False,
        changes_training=False,
        ge=5,
    )
    preempted_exit_status: Integer = setting(
        143,
        "exit status of `rampline run` after SIGTERM, when the checkpoint is saved",
        changes_epoch_time=False,
        changes_training=False,
        ge=0,
        le=255,
    )
    price_per_hour: NotNegative | None = setting(
        None,
        "price of the whole set-up per hour in USD; the run costs this times its wall time. `null` takes it from the "
        "study's `prices`, and leaves costs out without a machine",
        changes_epoch_time=False,
    )
    machine: Text | None = setting(None, "machine type: a key of the study's `prices`", changes_training=False)
    machines: Count = setting(1, "how many of these the run needs", changes_training=False)


@settings("parity")
class ParityConfig(Settings):
    """The check, before a scaled run, that its replicas train as one would; see `rampline.parity`."""

    steps: Whole = setting(
        10,
        "training steps that are compared with one replica before a scaled run trains; 0 leaves the check out",
    )
    on_failure: Literal["stop", "continue"] = setting(
        "stop",
        "`stop` fails the run before it trains; `continue` trains it with the tag `rampline.parity=fail`",
    )


@settings("explain")
class ExplainConfig(Settings):
    """The probes at the end of a run that tell where its time went; see `rampline.explain`."""

    steps: Whole = setting(
        20, "training steps of each probe that tells where a run's time went; 0 leaves the probes out"
    )
